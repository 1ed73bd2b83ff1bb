//! Readings in the text format of Prometheus: version 0.0.4, the only one that node_exporter knows, with the
//! end of an OpenMetrics text. In that version the name of a counter has `_total` in its description too,
//! which OpenMetrics omits; Prometheus accepts the text as either.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::failed;
use super::read::{Reading, Source};
use crate::failure::Result;

/// The text.
pub(super) fn text(readings: &[Reading]) -> Result<String> {
    let mut registry = Registry::with_prefix("rdma");
    registry.register_collector(Box::new(Readings(readings.to_vec())));
    let mut text = String::new();
    encode(&mut text, &registry).map_err(failed)?;
    Ok(text)
}

#[derive(Debug)]
struct Readings(Vec<Reading>);

/// A metric, with its readings.
struct Metric<'a> {
    help: String,
    /// Its value only grows.
    grows: bool,
    readings: Vec<(&'a Reading, u64)>,
}

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, metric) in metrics(&self.0) {
            let kind = match metric.grows {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(&name, &metric.help, None, kind)?;
            for (reading, value) in metric.readings {
                let labels = labels(reading);
                // A counter of the crate would add a second `_total` to the name.
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The readings by the name of their metric.
fn metrics(readings: &[Reading]) -> BTreeMap<String, Metric<'_>> {
    let mut metrics = BTreeMap::new();
    for reading in readings {
        let (level, is_object) = match reading.of {
            Source::Owner(_) => ("", true),
            Source::QueuePairs { .. } => ("qp_", false),
            Source::Port(_) => ("port_", false),
            Source::Device => ("device_", false),
        };
        // These count words of four bytes (InfiniBand specification).
        let (counter, value) = match reading.counter.as_str() {
            "port_xmit_data" | "port_rcv_data" => {
                let name = format!("{}_bytes", reading.counter);
                (name, reading.value.saturating_mul(4))
            }
            "registered_bytes" => (reading.counter.clone(), reading.value),
            name if is_object => (format!("objects_{name}"), reading.value),
            name => (name.to_owned(), reading.value),
        };
        let help = match is_object {
            true => format!(
                "Of each process and part of the kernel: {}",
                reading.counter
            ),
            false => format!("The kernel's counter {}", reading.counter),
        };
        let name = match counter.strip_prefix("port_") {
            Some(rest) if level == "port_" => format!("port_{}", sane(rest)),
            _ => format!("{level}{}", sane(&counter)),
        };
        let name = match is_object {
            true => name,
            false => format!("{name}_total"),
        };
        let metric = metrics.entry(name).or_insert_with(|| Metric {
            help,
            grows: !is_object,
            readings: Vec::new(),
        });
        metric.readings.push((reading, value));
    }
    metrics
}

fn labels(reading: &Reading) -> Vec<(&'static str, String)> {
    let mut labels = vec![("device", reading.device.clone())];
    let owner = reading.of.owner();
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    for (name, value) in [
        ("port", number(reading.of.port())),
        // Its queue pairs are no label: it would be another time series each time that one joins.
        ("set", number(reading.of.set().map(|(set, _)| set))),
        ("pid", number(owner.and_then(|owner| owner.pid))),
        ("comm", owner.and_then(|owner| owner.comm.clone())),
    ] {
        labels.extend(value.map(|value| (name, value)));
    }
    labels
}

/// A name of letters, digits and underscores.
fn sane(name: &str) -> String {
    let letter = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter,
        false => '_',
    };
    name.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let port = |counter: &str, value| Reading {
            device: "mlx5_0".into(),
            of: Source::Port(1),
            counter: counter.into(),
            value,
        };
        let object = Reading {
            device: "mlx5_0".into(),
            of: Source::Owner(Owner {
                pid: Some(7),
                comm: Some("ev\"il\n".into()),
            }),
            counter: "qp".into(),
            value: 3,
        };
        let set = Reading {
            device: "mlx5_0".into(),
            of: Source::QueuePairs {
                set: 5,
                port: 1,
                qps: vec![17, 18],
                owner: Owner {
                    pid: Some(7),
                    comm: None,
                },
            },
            counter: "rx_write_requests".into(),
            value: 9,
        };
        let readings = [port("port_rcv_data", 5), port("rx-odd", 2), object, set];
        let text = text(&readings).unwrap();
        let expected = "\
# HELP rdma_objects_qp Of each process and part of the kernel: qp
# TYPE rdma_objects_qp gauge
rdma_objects_qp{device=\"mlx5_0\",pid=\"7\",comm=\"ev\\\"il\\n\"} 3
# HELP rdma_port_rcv_data_bytes_total The kernel's counter port_rcv_data
# TYPE rdma_port_rcv_data_bytes_total counter
rdma_port_rcv_data_bytes_total{device=\"mlx5_0\",port=\"1\"} 20
# HELP rdma_port_rx_odd_total The kernel's counter rx-odd
# TYPE rdma_port_rx_odd_total counter
rdma_port_rx_odd_total{device=\"mlx5_0\",port=\"1\"} 2
# HELP rdma_qp_rx_write_requests_total The kernel's counter rx_write_requests
# TYPE rdma_qp_rx_write_requests_total counter
rdma_qp_rx_write_requests_total{device=\"mlx5_0\",port=\"1\",set=\"5\",pid=\"7\"} 9
# EOF
";
        assert_eq!(text, expected);
    }
}
