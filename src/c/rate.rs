//! Rates of links: the code on the wire, the multiple of 2.5 Gb/s, and Mb/s.

use std::ffi::c_int;

/// The code, the multiple if there is one, and the rate in Mb/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// The code for the port's own rate.
const MAX: c_int = 0;

/// `ibv_rate_to_mult(3)`.
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    let found = RATES.iter().find(|(code, ..)| *code == rate);
    found.and_then(|(_, multiple, _)| *multiple).unwrap_or(-1)
}

/// `mult_to_ibv_rate(3)`.
pub extern "C" fn mult_to_ibv_rate(wanted: c_int) -> c_int {
    let found = RATES
        .iter()
        .find(|(_, multiple, _)| *multiple == Some(wanted));
    found.map_or(MAX, |(code, ..)| *code)
}

/// `ibv_rate_to_mbps(3)`.
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    let found = RATES.iter().find(|(code, ..)| *code == rate);
    found.map_or(-1, |(.., mbps)| *mbps)
}

/// `mbps_to_ibv_rate(3)`.
pub extern "C" fn mbps_to_ibv_rate(wanted: c_int) -> c_int {
    let found = RATES.iter().find(|(.., mbps)| *mbps == wanted);
    found.map_or(MAX, |(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_there_and_back() {
        for (code, multiple, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(code), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), code);
            assert_eq!(ibv_rate_to_mult(code), multiple.unwrap_or(-1));
        }
        assert_eq!((mult_to_ibv_rate(11), mult_to_ibv_rate(7)), (19, MAX));
        assert_eq!(ibv_rate_to_mbps(MAX), -1);
    }
}
