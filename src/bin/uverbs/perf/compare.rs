//! Two results side by side: which differences are more than chance?

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
    let compared = compared(&before, &after, options.confidence)?;
    if compared.is_empty() {
        let text = "the two have no measurement in common";
        return Err(Failure::new(Kind::NotFound, text));
    }
    if options.json {
        return output::json(&compared.iter().map(to_json).collect());
    }
    for (side, [before, after]) in [
        ("client", [&before.client, &after.client]),
        ("server", [&before.server, &after.server]),
    ] {
        for (name, before) in before.named() {
            let after = after.named().into_iter().find(|(other, _)| *other == name);
            let after = after.map_or_else(|| "nothing".into(), |(_, value)| value);
            if before != after {
                let text = format!("{side}: {name} was {before} and is {after}");
                output::line(output::Foreign(&text))?;
            }
        }
    }
    let header = [
        "MEASUREMENT",
        "OF",
        "BEFORE",
        "AFTER",
        "CHANGE",
        "BETWEEN",
        "VERDICT",
    ];
    output::table(header, compared.iter().map(row).collect())
}

/// A metric of a run in both results.
#[derive(Clone, Debug, PartialEq)]
struct Compared {
    title: String,
    metric: Metric,
    before: f64,
    after: f64,
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
            None => "too few rounds",
            Some(change) if !change.is_real() => "no difference shown",
            Some(change) if (change.factor < 1.0) == self.metric.is_better_if_less() => "better",
            Some(_) => "worse",
        }
    }
}

fn compared(before: &Record, after: &Record, confidence: f64) -> Result<Vec<Compared>> {
    let mut compared = Vec::new();
    for run in &before.runs {
        let Some(other) = after.runs.iter().find(|other| other.plan == run.plan) else {
            continue;
        };
        for &metric in Metric::of(run.plan.goal) {
            let (before, after) = (values(run, metric)?, values(other, metric)?);
            compared.push(Compared {
                title: run.title(),
                metric,
                before: before.iter().geometric_mean(),
                after: after.iter().geometric_mean(),
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
    [
        compared.title.clone(),
        compared.metric.name().to_owned(),
        format!("{:.3}", compared.before),
        format!("{:.3}", compared.after),
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
            let all = compared(&result(before), &result(after), 0.99).unwrap();
            all.iter().map(Compared::verdict).collect()
        };
        assert_eq!(verdicts(a, b), ["no difference shown"; 2]);
        assert_eq!(verdicts(a, slower), ["worse"; 2]);
        assert_eq!(verdicts(slower, a), ["better"; 2]);
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
                let all = compared(&before, &after, 0.99).unwrap();
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
