//! Everything that a report of a fault should contain.

use crate::failure::Result;
use crate::files::Files;
use crate::{devices, gids, info, output};

/// The report, with all devices or the named one.
pub(super) fn print(files: &Files, device: Option<&str>) -> Result<()> {
    section("system")?;
    let system = rustix::system::uname();
    let text = |of: &std::ffi::CStr| of.to_string_lossy().into_owned();
    output::line(format_args!(
        "{} {} {} {}",
        text(system.sysname()),
        text(system.release()),
        text(system.version()),
        text(system.machine())
    ))?;
    output::line(format_args!("uverbs {}", env!("CARGO_PKG_VERSION")))?;
    let release = files.text("etc/os-release").unwrap_or_default();
    let name = release
        .lines()
        .find(|line| line.starts_with("PRETTY_NAME="));
    output::line(name.unwrap_or("an unknown distribution"))?;
    let cpus = files.text("proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find(|line| line.starts_with("model name"));
    output::line(model.unwrap_or("a processor without a name"))?;
    let modules = files.text("proc/modules").unwrap_or_default();
    let names = modules.lines().filter_map(|line| line.split(' ').next());
    let rdma: Vec<&str> = names
        .filter(|name| {
            ["ib_", "rdma", "iw_", "mlx", "efa", "siw"]
                .iter()
                .any(|of| name.starts_with(of))
        })
        .collect();
    output::line(format_args!("modules: {}", rdma.join(" ")))?;
    section("devices")?;
    part(devices::run(&devices::Options {
        verbose: true,
        json: false,
    }))?;
    let is_wanted = |it: &uverbs::Device| device.is_none_or(|name| it.name() == name);
    for device in uverbs::devices()?.into_iter().filter(is_wanted) {
        section(&format!("device {}", device.name()))?;
        let firmware = device.firmware_version().unwrap_or("not known");
        output::line(format_args!("firmware: {firmware}"))?;
        let device = Some(device.name().to_owned());
        part(gids::run(&gids::Options {
            device: device.clone(),
            port: None,
            json: false,
        }))?;
        part(info::run(&info::Options {
            device,
            port: None,
            verbose: true,
            json: false,
        }))?;
    }
    Ok(())
}

/// An error of a part is a part of the report, too.
fn part(shown: Result<()>) -> Result<()> {
    shown.or_else(output::line)
}

fn section(name: &str) -> Result<()> {
    output::line(format_args!("\n== {name}"))
}
