//! What `uverbs doctor` finds.

use std::process::Command;

use serde_json::Value;

use crate::{Result, fail, same};

/// What it says with `--json`, and how it ends.
///
/// # Errors
/// If it cannot be started, or says something else; the error has its complaint.
pub fn examine(doctor: &mut Command) -> Result<(Vec<Value>, Option<i32>)> {
    let output = doctor.output()?;
    match serde_json::from_slice(&output.stdout) {
        Ok(findings) => Ok((findings, output.status.code())),
        Err(error) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            fail(format!("{doctor:?}: {error}: {complaint}"))
        }
    }
}

/// The verdict of a check, with what was found and the remedy.
///
/// # Errors
/// If there is no such check.
pub fn found(findings: &[Value], check: &str) -> Result<(String, String)> {
    let Some(finding) = findings.iter().find(|finding| finding["check"] == check) else {
        return fail(format!("no check of {check}: {findings:?}"));
    };
    let verdict = finding["verdict"].as_str().unwrap_or_default().to_owned();
    Ok((
        verdict,
        format!("{}: {}", finding["found"], finding["remedy"]),
    ))
}

/// Fails unless the check has this verdict and says these words.
///
/// # Errors
/// If it has not, or if there is no such check.
pub fn is(findings: &[Value], check: &str, verdict: &str, words: &str) -> Result {
    let (is, text) = found(findings, check)?;
    same(
        (is.as_str(), text.contains(words)),
        (verdict, true),
        &format!("{check}: {text}"),
    )
}
