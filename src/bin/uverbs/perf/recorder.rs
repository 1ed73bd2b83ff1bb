//! The measurement: how long each message took, and how many completed in each interval.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::time::Time;
use crate::failure::{Failure, Kind, Result};

/// The longest time that the histogram distinguishes; with a fixed limit it never grows during a run.
const LONGEST: Duration = Duration::from_secs(3600);

/// The digits of a time that the histogram keeps.
const DIGITS: u8 = 3;

/// The length of an interval at first: a stall of a few intervals is visible.
const INTERVAL: Duration = Duration::from_millis(5);

/// The number of intervals; a longer run has longer ones.
const INTERVALS: usize = 4096;

/// The most times that are kept one by one, if that is requested.
pub(super) const SAMPLES: usize = 1 << 22;

/// The times of messages, as a histogram: pairs of a time in nanoseconds and how many took it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Times {
    /// The shortest, exactly.
    pub(super) min: u64,
    /// The longest, exactly.
    pub(super) max: u64,
    counts: Vec<(u64, u64)>,
}

impl Times {
    /// Joins the times of several threads or rounds.
    pub(super) fn joined<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let all: Vec<&Self> = all.into_iter().filter(|times| !times.is_empty()).collect();
        let mut counts: Vec<(u64, u64)> = Vec::new();
        for times in &all {
            counts.extend(&times.counts);
        }
        counts.sort_unstable();
        counts.dedup_by(|next, kept| {
            let is_same = next.0 == kept.0;
            if is_same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            is_same
        });
        Self {
            min: all.iter().map(|times| times.min).min().unwrap_or(0),
            max: all.iter().map(|times| times.max).max().unwrap_or(0),
            counts,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        sum(self.counts.iter().map(|&(_, count)| count))
    }

    /// The histogram itself.
    pub(super) fn histogram(&self) -> Result<Histogram<u64>> {
        let mut histogram = histogram()?;
        for &(time, count) in &self.counts {
            histogram.saturating_record_n(time, count);
        }
        Ok(histogram)
    }

    /// Each time, with the share (of 1) of messages that took at most as long.
    pub(super) fn cumulative(&self) -> Vec<(u64, f64)> {
        let (all, mut sum) = (self.len().max(1) as f64, 0_u64);
        let steps = self.counts.iter().map(|&(time, count)| {
            sum = sum.saturating_add(count);
            (time, sum as f64 / all)
        });
        steps.collect()
    }
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_max(LONGEST.as_nanos() as u64, DIGITS)
        .map_err(|error| Failure::new(Kind::Failed, error))
}

/// The sum, or the largest number if it is larger: of numbers that a file or a peer tells.
pub(super) fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Messages in each interval, from the beginning of the measurement on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rates {
    /// Seconds of an interval.
    pub(super) interval: f64,
    pub(super) counts: Vec<u64>,
}

impl Rates {
    fn new() -> Self {
        Self {
            interval: INTERVAL.as_secs_f64(),
            counts: Vec::new(),
        }
    }

    /// Counts messages at this many nanoseconds after the beginning.
    fn count(&mut self, at: u64, messages: u64) {
        loop {
            let index = (at as f64 / (self.interval * 1e9)) as usize;
            if index < INTERVALS {
                if self.counts.len() <= index {
                    self.counts.resize(index + 1, 0);
                }
                self.counts[index] += messages;
                return;
            }
            self.double();
        }
    }

    /// Makes one interval of two.
    fn double(&mut self) {
        self.interval *= 2.0;
        let pairs = self.counts.chunks(2);
        self.counts = pairs.map(|pair| pair.iter().sum()).collect();
    }

    /// Adds the rates of another thread with the same beginning.
    fn add(&mut self, mut other: Self) {
        while self.interval < other.interval {
            self.double();
        }
        while other.interval < self.interval {
            other.double();
        }
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
    }

    /// All but the last interval, which is seldom a whole one.
    pub(super) fn whole(&self) -> &[u64] {
        match self.counts.split_last() {
            Some((_, whole)) if !whole.is_empty() => whole,
            _ => &self.counts,
        }
    }
}

/// The outcome of one side in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Messages of this side that completed during the measurement.
    pub(super) messages: u64,
    /// Seconds of the measurement.
    pub(super) seconds: f64,
    /// Seconds of processor time of its threads during the measurement, without the kernel's own threads.
    pub(super) cpu_seconds: f64,
    /// Messages that this side sent, warm-up included.
    pub(super) sent: u64,
    /// Messages of the peer that arrived here, as far as a receive or memory shows them.
    pub(super) received: u64,
    /// Messages that were checked byte by byte.
    pub(super) checked: u64,
    pub(super) times: Times,
    pub(super) rates: Rates,
    /// Each time in nanoseconds, if that is requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) samples: Vec<u64>,
}

/// The largest number of messages that an outcome may have, which a float holds exactly, and the most
/// seconds.
const MOST_MESSAGES: u64 = 1 << 53;
const MOST_SECONDS: f64 = 1e9;

impl Outcome {
    /// Checks an outcome that a file or a peer tells: what is computed from it neither overflows nor divides
    /// by next to nothing, and plots have axes with an end.
    pub(super) fn validate(&self) -> Result<(), String> {
        let seconds = [self.seconds, self.cpu_seconds];
        if !seconds.iter().all(|it| (0.0..=MOST_SECONDS).contains(it)) {
            return Err(format!("its seconds are not from 0 to {MOST_SECONDS}"));
        }
        if self.seconds > 0.0 && self.seconds < 1e-9 {
            return Err("its seconds are less than the clock tells".into());
        }
        let Rates { interval, counts } = &self.rates;
        let intervals = INTERVAL.as_secs_f64()..=MOST_SECONDS;
        if !counts.is_empty() && !intervals.contains(interval) {
            return Err(format!("its intervals have {interval} seconds"));
        }
        if counts.len() > INTERVALS {
            return Err(format!("it has more than {INTERVALS} intervals"));
        }
        let times = self.times.counts.iter().map(|&(time, _)| time);
        let longest = times.chain([self.times.min, self.times.max]).max();
        if longest > Some(MOST_MESSAGES) {
            return Err("its times are longer than a run".into());
        }
        let messages = [
            self.messages,
            self.sent,
            self.received,
            self.checked,
            self.times.len(),
            sum(counts.iter().copied()),
        ];
        match messages.iter().all(|number| *number <= MOST_MESSAGES) {
            true => Ok(()),
            false => Err("it has more messages than can be".into()),
        }
    }

    /// Messages per second.
    pub(super) fn rate(&self) -> f64 {
        match self.seconds > 0.0 {
            true => self.messages as f64 / self.seconds,
            false => 0.0,
        }
    }

    /// Seconds of processor time per message.
    pub(super) fn cpu_per_message(&self) -> f64 {
        match self.messages {
            0 => 0.0,
            messages => self.cpu_seconds / messages as f64,
        }
    }

    /// Adds the outcome of another thread of the same side in the same round.
    pub(super) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.seconds = self.seconds.max(other.seconds);
        self.cpu_seconds += other.cpu_seconds;
        self.sent += other.sent;
        self.received += other.received;
        self.checked += other.checked;
        self.times = Times::joined([&self.times, &other.times]);
        match self.rates.counts.is_empty() {
            true => self.rates = other.rates,
            false => self.rates.add(other.rates),
        }
        self.samples.extend(other.samples);
    }
}

/// Messages that were posted at one time and completed at another.
#[derive(Clone, Copy, Debug)]
struct Completed {
    messages: u64,
    posted: Time,
    at: Time,
}

/// Records for one thread.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Messages that have completed since the last [`Self::settle`].
    completed: Vec<Completed>,
    /// The start of the measurement.
    from: Time,
    /// The end of the measurement, if it is known.
    until: Option<Time>,
    last: Time,
    messages: u64,
    histogram: Histogram<u64>,
    min: u64,
    max: u64,
    rates: Rates,
    samples: Option<Vec<u64>>,
}

impl Recorder {
    pub(super) fn new(from: Time, until: Option<Time>, keeps: bool) -> Result<Self> {
        Ok(Self {
            completed: Vec::new(),
            from,
            until,
            last: from,
            messages: 0,
            histogram: histogram()?,
            min: u64::MAX,
            max: 0,
            rates: Rates::new(),
            samples: keeps.then(Vec::new),
        })
    }

    /// The first message will be posted next. If messages are counted, and not seconds, the measurement
    /// begins here: the time before was the start of threads.
    pub(super) fn begin(&mut self, now: Time) {
        if self.until.is_none() {
            (self.from, self.last) = (now, now);
        }
    }

    /// Messages that were posted at one time have completed at another. This only notes them: counting must
    /// not delay the next messages.
    pub(super) fn completed(&mut self, messages: u64, posted: Time, at: Time) {
        self.completed.push(Completed {
            messages,
            posted,
            at,
        });
    }

    /// Counts the completed messages, while the next ones are in flight.
    pub(super) fn settle(&mut self) {
        let mut completed = std::mem::take(&mut self.completed);
        for Completed {
            messages,
            posted,
            at,
        } in completed.drain(..)
        {
            self.count(messages, posted, at);
        }
        self.completed = completed;
    }

    fn count(&mut self, messages: u64, posted: Time, now: Time) {
        if now < self.from || self.until.is_some_and(|until| posted > until) {
            return;
        }
        // Messages that were in flight at the end have a time, but do not count for the rate until then.
        if self.until.is_none_or(|until| now <= until) {
            self.messages += messages;
            self.last = now;
            self.rates.count(now.since(self.from), messages);
        }
        let time = now.since(posted);
        (self.min, self.max) = (self.min.min(time), self.max.max(time));
        self.histogram.saturating_record(time);
        if let Some(samples) = &mut self.samples
            && samples.len() < SAMPLES
        {
            samples.push(time);
        }
    }

    /// The outcome. The measurement ends at its planned end, or with the last message.
    pub(super) fn outcome(mut self) -> Outcome {
        self.settle();
        if let Some(until) = self.until {
            // Intervals at the end without completions count, too.
            self.rates.count(until.since(self.from), 0);
        }
        let counts = self.histogram.iter_recorded();
        let counts = counts.map(|step| (step.value_iterated_to(), step.count_at_value()));
        let counts: Vec<(u64, u64)> = counts.collect();
        let end = self.until.unwrap_or(self.last);
        Outcome {
            messages: self.messages,
            seconds: end.since(self.from) as f64 * 1e-9,
            times: Times {
                min: if counts.is_empty() { 0 } else { self.min },
                max: self.max,
                counts,
            },
            rates: self.rates,
            samples: self.samples.unwrap_or_default(),
            ..Outcome::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn recorded(times: &[u64]) -> Outcome {
        let start = Time::now();
        let mut recorder = Recorder::new(start, None, true).unwrap();
        let mut now = start;
        for &time in times {
            let posted = now;
            now = now + Duration::from_nanos(time);
            recorder.completed(1, posted, now);
        }
        recorder.outcome()
    }

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let times: Vec<u64> = (1..=10_000).map(|number| number * number).collect();
        let outcome = recorded(&times);
        assert_eq!(outcome.samples, times);
        let histogram = outcome.times.histogram().unwrap();
        for share in [0.5, 0.99, 0.999, 0.9999] {
            let exact = times[(share * times.len() as f64) as usize - 1] as f64;
            let found = histogram.value_at_quantile(share) as f64;
            assert!((found / exact - 1.0).abs() < 1e-3, "{share}: {found}");
        }
        assert_eq!((outcome.times.min, outcome.times.max), (1, 100_000_000));
        assert_eq!(outcome.times.len(), 10_000);
        assert_eq!(outcome.rates.counts.iter().sum::<u64>(), 10_000);
    }

    /// Catches a pause that disappears in an average.
    #[test]
    fn a_stall_is_an_interval_without_messages() {
        let mut times = vec![100_000; 300];
        times.insert(150, 50_000_000);
        let outcome = recorded(&times);
        let empty = outcome.rates.counts.iter().filter(|count| **count == 0);
        assert!(empty.count() >= 9, "{:?}", outcome.rates.counts);
        assert_eq!(outcome.times.max, 50_000_000);
    }

    #[test]
    fn a_long_run_has_longer_intervals() {
        let mut rates = Rates::new();
        let interval = rates.interval;
        for second in 0..100 {
            rates.count(second * 1_000_000_000, 1);
        }
        assert!(rates.counts.len() <= INTERVALS);
        assert_eq!(rates.counts.iter().sum::<u64>(), 100);
        assert!(rates.interval > interval);
        let mut short = Rates::new();
        short.count(5_000_000, 7);
        short.add(rates);
        assert_eq!(short.counts.iter().sum::<u64>(), 107);
        assert_eq!(short.counts[0], 8);
    }

    #[test]
    fn what_is_outside_is_not_measured() {
        let start = Time::now();
        let (from, until) = (start + MS, start + 3 * MS);
        let mut recorder = Recorder::new(from, Some(until), false).unwrap();
        for at in 0..=4 {
            recorder.completed(1, start, start + at * MS);
        }
        let outcome = recorder.outcome();
        assert_eq!((outcome.messages, outcome.seconds), (3, 0.002));
        assert!(outcome.samples.is_empty());
    }

    /// Catches a rate that includes the time before a side posted anything.
    #[test]
    fn a_count_is_measured_from_the_first_message_on() {
        let start = Time::now();
        let mut recorder = Recorder::new(start, None, false).unwrap();
        let first = start + 10 * MS;
        recorder.begin(first);
        recorder.completed(4, first, first + 2 * MS);
        assert_eq!(recorder.outcome().rate(), 2000.0);
        let mut timed = Recorder::new(start, Some(start + 4 * MS), false).unwrap();
        timed.begin(start + 2 * MS);
        assert_eq!(timed.outcome().seconds, 0.004);
    }

    #[test]
    fn joined_times_are_those_of_both() {
        let all: Vec<u64> = (1..=1000).map(|number| number * 1000).collect();
        let (odd, even): (Vec<u64>, Vec<u64>) = all.iter().partition(|time| *time % 2000 != 0);
        let both = Times::joined([&recorded(&odd).times, &recorded(&even).times]);
        assert_eq!(both, recorded(&all).times);
    }
}
