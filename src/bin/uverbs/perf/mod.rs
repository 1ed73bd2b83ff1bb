//! `uverbs perf`: latency and bandwidth between two hosts, or on one.
//!
//! The client plans a measurement and sends the plan to the server over TCP. Both make queues, connect them,
//! and work in threads of their own until both have finished. Each round has new queue pairs.
//!
//! | | |
//! |---|---|
//! | [`options`], [`plan`] | the command line, and what is measured |
//! | [`wire`], [`connect`] | the messages of the two sides, and how their queues are connected |
//! | [`lane`], [`memory`], [`pattern`] | a queue pair with its messages, where these lie, and what they say |
//! | [`pin`] | the CPU of each thread |
//! | [`worker`], [`session`] | a thread, and a side with all of them |
//! | [`recorder`], [`time`] | the measurement, and its clock |
//! | [`conditions`], [`record`] | under what conditions, and the document of it all |
//! | [`show`], [`chart`], [`svg`], [`compare`] | what is shown |

mod chart;
mod compare;
mod conditions;
mod connect;
mod lane;
mod lanes;
mod memory;
mod options;
mod pattern;
mod pin;
mod plan;
mod record;
mod recorder;
mod session;
mod show;
mod svg;
mod time;
mod wire;
mod worker;

use std::net::TcpStream;

pub(crate) use options::Options;

use crate::failure::Result;
use crate::output;
use crate::pingpong::meet;
use connect::Role;
use options::{Client, Command, Serve};
use plan::{Goal, Plan};
use record::{Record, Round, Run};
use session::Part;
use wire::{Message, Turn, Wire};

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.command {
        Command::Serve(options) => serve(options),
        Command::Latency(options) => measure(options, Goal::Latency),
        Command::Bandwidth(options) => measure(options, Goal::Bandwidth),
        Command::Show(options) => options.output.show(&Record::read(&options.file)?),
        Command::Compare(options) => compare::run(options),
    }
}

fn serve(options: &Serve) -> Result<()> {
    options.own.validate()?;
    connect::look(&options.own)?;
    let listener = meet::listen_on(options.own.port)?;
    output::line(format_args!(
        "clients at TCP port {} are served",
        options.own.port
    ))?;
    loop {
        let stream = meet::accept(&listener)?;
        let served = serve_one(stream, options);
        match (served, options.once) {
            (result, true) => return result,
            (Ok(()), false) => {}
            // Continue: the next client may succeed.
            (Err(failure), false) => output::complain(failure),
        }
    }
}

/// Carries out a client's plan, round after round.
fn serve_one(stream: TcpStream, options: &Serve) -> Result<()> {
    let mut wire = Wire::new(stream, Turn::Second)?;
    let served = serve_rounds(&mut wire, options);
    if let Err(failure) = &served {
        session::tell(&mut wire, failure);
    }
    served
}

fn serve_rounds(wire: &mut Wire, options: &Serve) -> Result<()> {
    let role = Role::Server {
        port: options.own.port,
    };
    while let Some(plan) = wire.plan()? {
        let side = connect::connect(wire, &options.own, &plan, role)?;
        let part = Part {
            is_active: plan.both,
            keeps_samples: false,
            shows_progress: false,
        };
        session::round(side, wire, &plan, part)?;
    }
    Ok(())
}

fn measure(options: &Client, goal: Goal) -> Result<()> {
    let plans = options.plans(goal)?;
    // A run may be long: a file that cannot be written is reported before it.
    for path in options.save.iter().chain(options.output.svg()) {
        record::prepare(path)?;
    }
    let (host, port) = (options.server.as_str(), options.own.port);
    let stream = meet::connect(host, port, options.connect_timeout)?;
    let mut wire = Wire::new(stream, Turn::First)?;
    let mut record = Record::default();
    let measured = plans
        .into_iter()
        .try_for_each(|plan| client_run(&mut wire, plan, options, &mut record));
    // The server is free for other clients while the result is shown.
    drop(wire);
    let measured = measured.map_err(|failure| failure.of_peer(host));
    if record.runs.is_empty() {
        return measured;
    }
    // What has been measured before a failure may have taken long.
    let saved = options
        .save
        .as_ref()
        .map_or(Ok(()), |path| record.save(path));
    let shown = options.output.show(&record);
    let shown = saved.and(shown);
    match (measured, shown) {
        (Err(failure), shown) => {
            let _ = shown.inspect_err(|failure| output::complain(failure));
            Err(failure)
        }
        (Ok(()), shown) => shown,
    }
}

/// Adds the rounds of a plan to the record, also those before one that fails.
fn client_run(wire: &mut Wire, plan: Plan, options: &Client, record: &mut Record) -> Result<()> {
    let mut rounds = Vec::new();
    let measured = (0..options.rounds).try_for_each(|_| {
        rounds.push(client_round(wire, &plan, options, record)?);
        Ok(())
    });
    if let Err(failure) = &measured {
        session::tell(wire, failure);
    }
    if !rounds.is_empty() {
        record.runs.push(Run::new(plan, rounds, &record.client)?);
    }
    measured
}

fn client_round(
    wire: &mut Wire,
    plan: &Plan,
    options: &Client,
    record: &mut Record,
) -> Result<Round> {
    wire.say(&Message::Plan {
        version: wire::version(),
        plan: Box::new(plan.clone()),
    })?;
    let role = Role::Client {
        server: &options.server,
        port: options.own.port,
    };
    let side = connect::connect(wire, &options.own, plan, role)?;
    let [client, server] = side.conditions.clone();
    (record.client, record.server) = (client, server);
    let part = Part {
        is_active: true,
        keeps_samples: options.samples,
        shows_progress: options.output.is_for_people(),
    };
    let [client, server] = session::round(side, wire, plan, part)?;
    Ok(Round { client, server })
}
