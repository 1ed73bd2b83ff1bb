//! `--trace`: the library's events as text on standard error.

use tracing_subscriber::filter::LevelFilter;

/// Prints every event of the library from now on, with the time since this call.
pub(crate) fn start() {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_timer(tracing_subscriber::fmt::time::uptime())
        .with_ansi(false)
        .with_writer(std::io::stderr)
        // It would complain to standard error, and panic because that is what cannot be written.
        .log_internal_errors(false)
        .init();
}
