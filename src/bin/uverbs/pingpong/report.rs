//! The output of a game: as text during the game, or as one JSON value at its end.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use uverbs::Endpoint;

use super::game::Score;
use super::options::Options;

/// A game that was played to its end.
pub(super) struct Report<'a> {
    pub(super) options: &'a Options,
    pub(super) device: &'a str,
    pub(super) port: u8,
    pub(super) local: Endpoint,
    pub(super) remote: Endpoint,
    pub(super) score: Score,
}

/// The quantiles in the output, with their names in JSON.
const QUANTILES: [(&str, &str, f64); 4] = [
    ("median", "p50", 0.5),
    ("99%", "p99", 0.99),
    ("99.9%", "p999", 0.999),
    ("max", "max", 1.0),
];

impl Report<'_> {
    /// Bytes in both directions, counted as in the C programs.
    fn bytes(&self) -> u128 {
        2 * u128::from(self.options.size()) * u128::from(self.options.iters)
    }

    fn seconds(&self) -> f64 {
        self.score.elapsed.as_secs_f64()
    }

    fn us_per_iteration(&self) -> f64 {
        self.seconds() * 1e6 / self.options.iters as f64
    }

    /// 10⁶ bytes per second.
    fn mb_per_second(&self) -> f64 {
        self.bytes() as f64 / 1e6 / self.seconds()
    }

    pub(super) fn to_json(&self) -> Value {
        let Self {
            options,
            local,
            remote,
            ..
        } = self;
        json!({
            "transport": options.transport.name(),
            "role": if options.server.is_some() { "client" } else { "server" },
            "device": self.device,
            "port": self.port,
            "local": endpoint_to_json(local),
            "remote": endpoint_to_json(remote),
            "size": options.size(),
            "iterations": options.iters,
            "events": options.events,
            "checked": options.check,
            "seconds": self.seconds(),
            "bytes": self.bytes() as u64,
            "us_per_iteration": rounded(self.us_per_iteration()),
            "mb_per_second": rounded(self.mb_per_second()),
            "latency_us": latency_to_json(&self.score.latency),
        })
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, iters) = (self.bytes(), self.options.iters);
        let seconds = self.seconds();
        writeln!(
            f,
            "{bytes} bytes in {seconds:.2} seconds = {:.2} MB/s",
            self.mb_per_second()
        )?;
        write!(
            f,
            "{iters} iterations in {seconds:.2} seconds = {:.2} µs/iteration",
            self.us_per_iteration()
        )?;
        if let Some(latency) = latency_text(&self.score.latency) {
            write!(f, "\nlatency of an iteration in µs: {latency}")?;
        }
        if self.options.check {
            write!(
                f,
                "\n{iters} messages received and checked: every byte as it was sent"
            )?;
        }
        Ok(())
    }
}

/// An endpoint as text for people.
pub(super) fn endpoint_text(endpoint: &Endpoint) -> String {
    let Endpoint { lid, qpn, psn, gid } = endpoint;
    let gid = gid.unwrap_or_default();
    format!("LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}")
}

fn endpoint_to_json(endpoint: &Endpoint) -> Value {
    json!({
        "lid": endpoint.lid,
        "qpn": endpoint.qpn,
        "psn": endpoint.psn,
        "gid": endpoint.gid.map(|gid| gid.to_string()),
    })
}

/// Three decimals, the resolution of the measurement.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// The summary; `None` if nothing was measured, as in a server that got one message.
fn latency_text(latency: &Histogram<u64>) -> Option<String> {
    if latency.is_empty() {
        return None;
    }
    let mut text = format!("min {:.1}", microseconds(latency.min()));
    for (name, _, quantile) in QUANTILES {
        let value = microseconds(latency.value_at_quantile(quantile));
        // Writing to a string does not fail.
        let _ = write!(text, ", {name} {value:.1}");
    }
    Some(text)
}

fn latency_to_json(latency: &Histogram<u64>) -> Value {
    if latency.is_empty() {
        return Value::Null;
    }
    let mut summary = json!({
        "min": microseconds(latency.min()),
        "mean": rounded(latency.mean() / 1e3),
    });
    for (_, name, quantile) in QUANTILES {
        summary[name] = json!(microseconds(latency.value_at_quantile(quantile)));
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_in_microseconds() {
        let mut latency = Histogram::new(3).unwrap();
        for nanoseconds in [1000, 2000, 3000] {
            latency.record(nanoseconds).unwrap();
        }
        let text = latency_text(&latency).unwrap();
        assert_eq!(text, "min 1.0, median 2.0, 99% 3.0, 99.9% 3.0, max 3.0");
        assert_eq!(latency_to_json(&latency)["min"], 1.0);
    }

    #[test]
    fn nothing_measured_is_nothing_told() {
        let latency = Histogram::new(3).unwrap();
        assert_eq!(latency_text(&latency), None);
        assert_eq!(latency_to_json(&latency), Value::Null);
    }
}
