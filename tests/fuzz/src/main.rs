//! The targets, driven by libFuzzer: `UVERBS_FUZZ_TARGET` names the one, the arguments are libFuzzer's.

#![no_main]

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("UVERBS_FUZZ_TARGET").unwrap_or_default();
        match fuzz::target(&name) {
            Some(target) => target,
            None => {
                let names: Vec<&str> = fuzz::TARGETS.iter().map(|target| target.0).collect();
                eprintln!("UVERBS_FUZZ_TARGET={name:?}: there are {names:?}");
                std::process::exit(2);
            }
        }
    });
    target(bytes);
});
