//! Two results side by side: which differences are more than chance?

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

use super::options::Compare;
use super::record::{Metric, Record, Run};
use crate::failure::{Failure, Kind, Result};
use crate::output;

pub(super) fn run(options: &Compare) -> Result<()> {
    let before = Record::read(&options.before)?;
    let after = Record::read(&options.after)?;
    let Runs {
        both,
        only_before,
        only_after,
    } = Runs::of(&before, &after);
    let compared = compared(&both, options.confidence)?;
    let conditions = changed(&before, &after);
    if options.json {
        let plans = |runs: &[&Run]| runs.iter().map(|run| json!(run.plan)).collect::<Value>();
        output::json(&json!({
            "conditions": conditions.iter().map(Changed::to_json).collect::<Value>(),
            "compared": compared.iter().map(to_json).collect::<Value>(),
            "only_before": plans(&only_before),
            "only_after": plans(&only_after),
        }))?;
    } else {
        for changed in &conditions {
            output::line(output::Foreign(&changed.to_string()))?;
        }
        for (side, runs, others) in [
            ("before", &only_before, &only_after),
            ("after", &only_after, &only_before),
        ] {
            for run in runs {
                output::line(format_args!("only {side}: {}", run.title_beside(others)))?;
            }
        }
        if !compared.is_empty() {
            let header = [
                "MEASUREMENT",
                "OF",
                "BEFORE",
                "AFTER",
                "CHANGE",
                "BETWEEN",
                "VERDICT",
            ];
            output::table(header, compared.iter().map(row).collect())?;
        }
    }
    match compared.is_empty() {
        false => Ok(()),
        true => Err(Failure::new(
            Kind::NotFound,
            "the two have no measurement in common",
        )),
    }
}

/// A condition that differs between the results.
struct Changed {
    side: &'static str,
    name: String,
    before: Option<String>,
    after: Option<String>,
}

impl Changed {
    fn to_json(&self) -> Value {
        json!({
            "side": self.side,
            "name": self.name,
            "before": self.before,
            "after": self.after,
        })
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".into());
        let (before, after) = (known(&self.before), known(&self.after));
        let Self { side, name, .. } = self;
        write!(f, "{side}: {name} was {before} and is {after}")
    }
}

fn changed(before: &Record, after: &Record) -> Vec<Changed> {
    let mut all = Vec::new();
    for (side, before, after) in [
        ("client", &before.client, &after.client),
        ("server", &before.server, &after.server),
    ] {
        let [before, after] = [before, after].map(|it| BTreeMap::from_iter(it.named()));
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        all.extend(names.into_iter().map(|name| Changed {
            side,
            name: name.clone(),
            before: before.get(name).cloned(),
            after: after.get(name).cloned(),
        }));
    }
    all.retain(|it| it.before != it.after);
    all
}

/// The runs of two results.
struct Runs<'a> {
    /// The same measurement in each.
    both: Vec<(&'a Run, &'a Run)>,
    only_before: Vec<&'a Run>,
    only_after: Vec<&'a Run>,
}

impl<'a> Runs<'a> {
    fn of(before: &'a Record, after: &'a Record) -> Self {
        let mut runs = Self {
            both: Vec::new(),
            only_before: Vec::new(),
            only_after: after.runs.iter().collect(),
        };
        for run in &before.runs {
            let is_same = |other: &&Run| other.plan.measures_as(&run.plan);
            match runs.only_after.iter().position(is_same) {
                // A measurement that was made twice is compared twice.
                Some(at) => runs.both.push((run, runs.only_after.remove(at))),
                None => runs.only_before.push(run),
            }
        }
        runs
    }
}

/// A metric of a run in both results.
#[derive(Clone, Debug, PartialEq)]
struct Compared {
    title: String,
    metric: Metric,
    before: Option<f64>,
    after: Option<f64>,
    change: Option<Change>,
}

/// The factor by which a metric changed: its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    factor: f64,
    least: f64,
    most: f64,
}

impl Change {
    fn is_real(&self) -> bool {
        self.least > 1.0 || self.most < 1.0
    }
}

impl Compared {
    fn verdict(&self) -> &'static str {
        match self.change {
            None if self.before.is_none() || self.after.is_none() => "nothing was measured",
            None => "too few rounds",
            Some(change) if !change.is_real() => "no difference shown",
            Some(change) if (change.factor < 1.0) == self.metric.is_better_if_less() => "better",
            Some(_) => "worse",
        }
    }
}

fn compared(runs: &[(&Run, &Run)], confidence: f64) -> Result<Vec<Compared>> {
    let mut compared = Vec::new();
    for (run, other) in runs {
        for &metric in Metric::of(run.plan.goal) {
            let (before, after) = (values(run, metric)?, values(other, metric)?);
            // The mean of no rounds is no number.
            let mean =
                |values: &[f64]| Some(values.iter().geometric_mean()).filter(|it| it.is_finite());
            compared.push(Compared {
                title: run.title(),
                metric,
                before: mean(&before),
                after: mean(&after),
                change: change(&before, &after, confidence),
            });
        }
    }
    Ok(compared)
}

/// The metric in each round that measured anything.
fn values(run: &Run, metric: Metric) -> Result<Vec<f64>> {
    let values: Result<Vec<f64>> = run.rounds.iter().map(|round| round.value(metric)).collect();
    Ok(values?.into_iter().filter(|value| *value > 0.0).collect())
}

/// The relative precision of a median: histograms have three digits.
const RESOLUTION: f64 = 1e-3;

/// Welch's t-interval of the difference of the means of the logarithms, as factors, and no narrower than the
/// precision of the metric. `None` if a side has fewer than two values.
fn change(before: &[f64], after: &[f64], confidence: f64) -> Option<Change> {
    if before.len() < 2 || after.len() < 2 {
        return None;
    }
    let logarithms =
        |values: &[f64]| -> Vec<f64> { values.iter().map(|value| value.ln()).collect() };
    let (before, after) = (logarithms(before), logarithms(after));
    let difference = after.iter().mean() - before.iter().mean();
    // For each mean, the square of its error, and that square's degrees of freedom.
    let error = |values: &[f64]| values.iter().variance() / values.len() as f64;
    let (first, second) = (error(&before), error(&after));
    let both = first + second;
    let half = match both > 0.0 {
        false => 0.0,
        true => {
            let part = |error: f64, count: usize| error * error / (count - 1) as f64;
            let freedom = both * both / (part(first, before.len()) + part(second, after.len()));
            let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
            t.inverse_cdf(f64::midpoint(1.0, confidence)) * both.sqrt()
        }
    };
    let half = half.max(RESOLUTION);
    Some(Change {
        factor: difference.exp(),
        least: (difference - half).exp(),
        most: (difference + half).exp(),
    })
}

fn percent(factor: f64) -> String {
    format!("{:+.2}%", (factor - 1.0) * 100.0)
}

fn row(compared: &Compared) -> [String; 7] {
    let (change, between) = match compared.change {
        Some(change) => (
            percent(change.factor),
            format!("{} and {}", percent(change.least), percent(change.most)),
        ),
        None => ("-".into(), "-".into()),
    };
    let mean = |value: Option<f64>| output::or_dash(value.map(|value| format!("{value:.3}")));
    [
        compared.title.clone(),
        compared.metric.name().to_owned(),
        mean(compared.before),
        mean(compared.after),
        change,
        between,
        compared.verdict().to_owned(),
    ]
}

fn to_json(compared: &Compared) -> Value {
    json!({
        "measurement": compared.title,
        "of": compared.metric.name(),
        "before": compared.before,
        "after": compared.after,
        "change": compared.change.map(|change| json!({
            "factor": change.factor,
            "least": change.least,
            "most": change.most,
        })),
        "verdict": compared.verdict(),
    })
}

#[cfg(test)]
mod tests {
    use statrs::distribution::Normal;

    use super::super::record::tests::{round, run};
    use super::*;

    /// The interval of the two samples below, computed with mpmath from the definition: 5.3496 degrees of
    /// freedom, a quantile of 2.5209.
    const EXPECTED: (f64, f64) = (0.908_216_003_896, 1.258_163_007_2);

    #[test]
    fn the_interval_is_that_of_welch() {
        let (before, after) = ([10.0, 11.0, 12.0, 13.0, 14.0], [12.0, 12.5, 13.0, 13.5]);
        let change = change(&before, &after, 0.95).unwrap();
        for (is, should) in [(change.least, EXPECTED.0), (change.most, EXPECTED.1)] {
            assert!((is / should - 1.0).abs() < 1e-9, "{change:?} {EXPECTED:?}");
        }
    }

    #[test]
    fn chance_is_no_difference_and_a_tenth_is_one() {
        let result = |times: [u64; 5]| Record {
            runs: vec![run(times.map(|time| round(vec![time; 100])).into())],
            ..Record::default()
        };
        let (a, b) = ([1000, 1010, 990, 1005, 995], [1004, 991, 1009, 1000, 996]);
        let slower = a.map(|time| time * 11 / 10);
        let verdicts = |before, after| -> Vec<&'static str> {
            let (before, after) = (result(before), result(after));
            let all = compared(&Runs::of(&before, &after).both, 0.99).unwrap();
            all.iter().map(Compared::verdict).collect()
        };
        assert_eq!(verdicts(a, b), ["no difference shown"; 2]);
        assert_eq!(verdicts(a, slower), ["worse"; 2]);
        assert_eq!(verdicts(slower, a), ["better"; 2]);
    }

    /// Catches measurements that are left out without a word, and those that another time limit hides.
    #[test]
    fn every_measurement_is_compared_or_told() {
        let of = |sizes: &[(u32, f64)]| Record {
            runs: sizes
                .iter()
                .map(|&(size, timeout)| {
                    let mut run = run(vec![round([100; 10])]);
                    (run.plan.size, run.plan.timeout) = (size, timeout);
                    run
                })
                .collect(),
            ..Record::default()
        };
        let before = of(&[(8, 10.0), (64, 10.0), (64, 10.0)]);
        let after = of(&[(4096, 10.0), (8, 60.0), (64, 10.0)]);
        let runs = Runs::of(&before, &after);
        let sizes = |runs: &[&Run]| runs.iter().map(|run| run.plan.size).collect::<Vec<_>>();
        let both: Vec<u32> = runs.both.iter().map(|(run, _)| run.plan.size).collect();
        assert_eq!(both, [8, 64]);
        assert_eq!(sizes(&runs.only_before), [64]);
        assert_eq!(sizes(&runs.only_after), [4096]);
    }

    /// Catches two lines that say the same of measurements that differ.
    #[test]
    fn what_differs_between_measurements_of_one_name_is_told() {
        let one = run(vec![]);
        let mut other = one.clone();
        other.plan.depth = 7;
        assert_eq!(one.title_beside(&[]), one.title());
        let expected = format!("{} (depth 128)", one.title());
        assert_eq!(one.title_beside(&[&other]), expected);
    }

    #[test]
    fn rounds_without_messages_have_no_mean() {
        let record = Record {
            runs: vec![run(vec![round([]), round([])])],
            ..Record::default()
        };
        let all = compared(&Runs::of(&record, &record).both, 0.99).unwrap();
        for it in all {
            assert_eq!((it.before, it.verdict()), (None, "nothing was measured"));
            assert!(row(&it)[2] == "-" && to_json(&it)["before"].is_null());
        }
    }

    #[test]
    fn one_round_says_nothing_about_chance() {
        assert_eq!(change(&[1.0], &[2.0, 3.0], 0.99), None);
    }

    /// Numbers with a normal distribution, the same in each run of the test.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let uniform = ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            Normal::standard().inverse_cdf(uniform)
        }

        /// `count` samples, which scatter by this share.
        fn samples(&mut self, count: usize, scatter: f64) -> Vec<f64> {
            (0..count).map(|_| (self.next() * scatter).exp()).collect()
        }
    }

    /// Catches a confidence that is wrong: a one-sided quantile, a quantile of the normal distribution or
    /// with other degrees of freedom, and a variance of the population or of both sides together.
    ///
    /// Welch's interval is not exact. Another program has counted what is expected of it (Python, 40,000
    /// pairs of each).
    #[test]
    fn equal_runs_seem_to_differ_as_often_as_the_confidence_says() {
        const PAIRS: usize = 1500;
        let mut noise = Noise(1);
        for (confidence, sides, expected) in [
            (0.8, [(5, 0.05), (5, 0.05)], 0.192),
            (0.95, [(5, 0.05), (5, 0.05)], 0.044),
            (0.95, [(4, 0.15), (12, 0.05)], 0.058),
            (0.99, [(5, 0.05), (5, 0.05)], 0.0074),
        ] {
            let differ = (0..PAIRS).filter(|_| {
                let [before, after] = sides.map(|(count, scatter)| noise.samples(count, scatter));
                change(&before, &after, confidence).unwrap().is_real()
            });
            let share = differ.count() as f64 / PAIRS as f64;
            let chance = 3.0 * (expected / PAIRS as f64).sqrt();
            let is_as_expected = (share - expected).abs() < chance;
            assert!(
                is_as_expected,
                "{confidence}, {sides:?}: {share}, not {expected}"
            );
        }
    }

    /// Rounds of one build: messages scatter, and so do whole rounds.
    fn rounds(noise: &mut Noise, microseconds: f64) -> Record {
        let rounds = (0..5).map(|_| {
            let of_round = microseconds * (noise.next() * 0.01).exp();
            round((0..60).map(|_| (of_round * (noise.next() * 0.05).exp()) as u64))
        });
        Record {
            runs: vec![run(rounds.collect())],
            ..Record::default()
        }
    }

    /// Catches a comparison, from the rounds of two results to the verdicts, that takes chance for a
    /// difference more often than once in twenty, or that takes a difference for chance.
    #[test]
    fn of_twenty_comparisons_of_one_build_nineteen_find_nothing() {
        const COMPARISONS: usize = 100;
        let mut noise = Noise(2);
        let mut finding = |verdict: &str, before: f64, after: f64| {
            let found = (0..COMPARISONS).filter(|_| {
                let [before, after] = [before, after].map(|time| rounds(&mut noise, time));
                let all = compared(&Runs::of(&before, &after).both, 0.99).unwrap();
                assert_eq!(all.len(), 2);
                all.iter().all(|it| it.verdict() == verdict)
            });
            found.count()
        };
        let nineteen_of_twenty = COMPARISONS * 19 / 20;
        for (verdict, before, after) in [
            ("no difference shown", 10_000.0, 10_000.0),
            ("worse", 10_000.0, 11_000.0),
            ("better", 11_000.0, 10_000.0),
        ] {
            let found = finding(verdict, before, after);
            assert!(found >= nineteen_of_twenty, "{verdict}: {found}");
        }
    }
}
