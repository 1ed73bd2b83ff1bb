//! The way of a queue pair's packets: its UDP source port, its physical port, and whether data are written in
//! order.

use uverbs_uapi::enums::QpType;
use uverbs_uapi::mlx5::{DciStreamsCaps, QueryDevRespFlags, QueryDeviceResp};

use super::Device;
use super::device_command::{Change, ChangeQp, QueryCapabilities, QueryLag, QueryQp, Ways, ask};
use super::refusal::Answer;
use crate::command::{Command, CommandFd, DriverData, QpSpec, QueryDeviceWith, driver_reply};
use crate::driver::contract::{DcStreams, QpName, STREAMS};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::work::LagPort;

/// What a kernel or function lacks that takes no commands of the device's own.
const NO_COMMANDS: &str = "commands of the device's own (DEVX)";

fn lacks(verb: Verb, qp: QpName, what: &str) -> Error {
    Error::unsupported(
        verb,
        Subject::numbered("QP", qp.qpn.into()),
        what.to_owned(),
    )
}

/// The answer to the query of capabilities; `None` if the kernel passes no commands on.
fn told(result: Result<Answer<Ways>>) -> Result<Option<Ways>> {
    match result {
        Ok(Ok(ways)) => Ok(Some(ways)),
        Ok(Err(refused)) => {
            Err(refused.error(QueryCapabilities::VERB, QueryCapabilities.subject()))
        }
        // It has no such method, or the context was created without (`devx_get_uid` in `devx.c`).
        Err(error) if error.is_unsupported() || error.errno() == Some(Errno::INVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Device {
    /// What the device can do; `None` if it takes no commands of its own.
    pub(super) fn ways(&self, fd: &CommandFd) -> Result<Option<Ways>> {
        if let Some(ways) = self.ways.get() {
            return Ok(Some(*ways));
        }
        let ways = told(fd.execute(&QueryCapabilities))?;
        // Two threads may come here at once, with the same answer.
        Ok(ways.map(|ways| *self.ways.get_or_init(|| ways)))
    }

    fn ways_for(&self, fd: &CommandFd, verb: Verb, qp: QpName) -> Result<Ways> {
        let ways = self.ways(fd)?;
        ways.ok_or_else(|| lacks(verb, qp, NO_COMMANDS))
    }

    /// Whether the bytes of a message are written in their order, as far as the device says.
    pub(super) fn is_data_in_order(&self, fd: &CommandFd, qp: QpName) -> Result<bool> {
        match self.ways(fd)? {
            Some(ways) if ways.data_in_order => Ok(ask(fd, &QueryQp(qp))?.data_in_order),
            _ => Ok(false),
        }
    }

    /// Fails if queue pairs like that cannot receive out of order. The kernel must know how to ask for it.
    pub(super) fn needs_out_of_order(
        &self,
        fd: &CommandFd,
        spec: &QpSpec,
        inline_scatter: bool,
    ) -> Result<()> {
        let lacks = |what: &str| {
            let what = format!("receiving out of order{what}");
            Err(Error::unsupported(Verb::CreateQp, spec.subject(), what))
        };
        if inline_scatter {
            return lacks(" with inline scatter");
        }
        if spec.qp_type == QpType::XRC_SEND {
            return lacks(" with XRC");
        }
        if spec.qp_type == QpType::DCI {
            return lacks(" with DC");
        }
        let (_, told) = fd.execute(&QueryDeviceWith {
            driver: DriverData::output::<QueryDeviceResp>(),
        })?;
        // A kernel that answers less does not know it.
        let flags = driver_reply::<QueryDeviceResp>(&told).map_or(0, |told| told.flags);
        if flags & QueryDevRespFlags::FLAGS_OOO_DP.bits() == 0 {
            return lacks(", which Linux 6.13 and newer firmware brought");
        }
        let [datagrams, unreliable, reliable] = self
            .ways(fd)?
            .map(|ways| ways.out_of_order)
            .unwrap_or_default();
        let has = match spec.qp_type {
            QpType::UD => datagrams,
            QpType::UC => unreliable,
            _ => reliable,
        };
        if !has {
            return lacks(": the device has it for other transports, or takes no commands (DEVX)");
        }
        Ok(())
    }

    /// How many streams an initiator may have; none where the kernel does not know them.
    pub(crate) fn stream_limits(&self, fd: &CommandFd) -> Result<DciStreamsCaps> {
        let (_, told) = fd.execute(&QueryDeviceWith {
            driver: DriverData::output::<QueryDeviceResp>(),
        })?;
        let told = driver_reply::<QueryDeviceResp>(&told);
        Ok(told.map(|told| told.dci_streams_caps).unwrap_or_default())
    }

    /// Fails if the device has no such streams, or if the queue pair is no initiator.
    pub(super) fn needs_streams(
        &self,
        fd: &CommandFd,
        spec: &QpSpec,
        streams: DcStreams,
    ) -> Result<()> {
        if spec.qp_type != QpType::DCI {
            let what = "streams of queue pairs that are no DC initiators";
            return Err(Error::unsupported(Verb::CreateQp, spec.subject(), what));
        }
        let DciStreamsCaps {
            max_log_num_concurent: most,
            max_log_num_errored: most_failures,
        } = self.stream_limits(fd)?;
        if most == 0 {
            return Err(Error::unsupported(Verb::CreateQp, spec.subject(), STREAMS));
        }
        if streams.log_count > most || streams.log_failures > most_failures {
            let why = format!(
                "2^{} streams, and failure with 2^{} of them: the device has up to 2^{most} and 2^{most_failures}",
                streams.log_count, streams.log_failures,
            );
            return Err(Error::invalid(Verb::CreateQp, spec.subject(), why));
        }
        Ok(())
    }

    pub(crate) fn change_stream(&self, fd: &CommandFd, qp: QpName, stream: u16) -> Result<()> {
        let verb = Verb::DciStreamIdReset;
        if !self.ways_for(fd, verb, qp)?.streams {
            return Err(lacks(verb, qp, STREAMS));
        }
        let change = Change::Stream(stream);
        ask(fd, &ChangeQp { qp, change })
    }

    pub(super) fn change_udp_source_port(
        &self,
        fd: &CommandFd,
        qp: QpName,
        port: u16,
    ) -> Result<()> {
        let verb = Verb::ModifyQpUdpSport;
        if !self.ways_for(fd, verb, qp)?.udp_source_port {
            let what = "UDP source ports that change, which RoCE ports with newer firmware have";
            return Err(lacks(verb, qp, what));
        }
        let change = Change::UdpSourcePort(port);
        ask(fd, &ChangeQp { qp, change })
    }

    /// Where the packets go, and how many ports there are.
    fn lag(&self, fd: &CommandFd, verb: Verb, qp: QpName) -> Result<(LagPort, Ways)> {
        let ways = self.ways_for(fd, verb, qp)?;
        if ways.lag_ports <= 1 {
            return Err(lacks(verb, qp, "ports that can be bonded"));
        }
        let lag = ask(fd, &QueryLag)?;
        if !lag.bonded && !ways.lag_affinity {
            return Err(lacks(verb, qp, "ports that are bonded"));
        }
        let configured = ask(fd, &QueryQp(qp))?.lag_port;
        let port = |number: u8| (number != 0).then_some(number);
        let active = match configured {
            1 | 2 => port(lag.active[usize::from(configured) - 1]),
            _ => None,
        };
        let configured = port(configured);
        Ok((LagPort { configured, active }, ways))
    }

    pub(super) fn query_lag_port(&self, fd: &CommandFd, qp: QpName) -> Result<LagPort> {
        let (port, _) = self.lag(fd, Verb::QueryQpLagPort, qp)?;
        Ok(port)
    }

    /// A device whose ports are not bonded may say that it has done it, and do nothing: so that is asked
    /// first.
    pub(super) fn change_lag_port(&self, fd: &CommandFd, qp: QpName, port: u8) -> Result<()> {
        let verb = Verb::ModifyQpLagPort;
        let (_, ways) = self.lag(fd, verb, qp)?;
        if !ways.lag_changes {
            return Err(lacks(verb, qp, "physical ports that change"));
        }
        if !(1..=ways.lag_ports).contains(&port) {
            let subject = Subject::numbered("QP", qp.qpn.into());
            let why = format!("there are ports 1 to {}, not {port}", ways.lag_ports);
            return Err(Error::invalid(verb, subject, why));
        }
        let change = Change::LagPort(port);
        ask(fd, &ChangeQp { qp, change })
    }
}

#[cfg(test)]
mod tests {
    use super::super::refusal::Refused;
    use super::*;

    /// Would catch a device that is removed, or refuses, and counts as one without commands.
    #[test]
    fn a_query_that_fails_is_no_answer() {
        let failed = |errno| {
            let subject = Subject::the("device");
            told(Err(Error::os(Verb::DevxGeneralCmd, subject, errno)))
        };
        for errno in [Errno::INVAL, Errno::OPNOTSUPP, Errno::PROTONOSUPPORT] {
            assert_eq!(failed(errno), Ok(None), "{errno}");
        }
        for errno in [Errno::IO, Errno::NOMEM, Errno::NODEV] {
            assert_eq!(failed(errno).unwrap_err().errno(), Some(errno));
        }
        let refused = Refused::granted(&[2, 0, 0, 0, 0, 0, 0x12, 0x34]).unwrap_err();
        let error = told(Ok(Err(refused))).unwrap_err().to_string();
        assert!(error.contains("0x1234"), "{error}");
        assert_eq!(told(Ok(Ok(Ways::default()))), Ok(Some(Ways::default())));
    }
}
