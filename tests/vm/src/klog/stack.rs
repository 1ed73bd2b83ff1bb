//! The stack of functions in a kernel's report.

/// The functions in a report, the innermost first: the one that the processor was in, then the callers. Those
/// that the kernel marks with `?`, because it found their addresses on the stack and is not sure that they
/// were called, are left out.
pub(super) fn stack(lines: &[String]) -> Vec<&str> {
    let mut functions = Vec::new();
    let mut texts = lines.iter().map(|line| text(line));
    let mut traced = false;
    for line in texts.by_ref() {
        if let Some(place) = line.strip_prefix("RIP: ") {
            // A selector comes first, `0010:`.
            functions.extend(place.split_once(':').and_then(|(_, at)| function(at)));
        }
        if line == "Call Trace:" {
            traced = true;
            break;
        }
    }
    if traced {
        let calls = texts.take_while(|line| line.starts_with('<') || line.contains("+0x"));
        functions.extend(calls.filter_map(function));
    }
    functions
}

/// A line without its time.
pub(super) fn text(line: &str) -> &str {
    let rest = line.strip_prefix('[').and_then(|line| line.split_once(']'));
    rest.map_or(line, |(_, text)| text).trim()
}

/// The function in `name+0x10/0x20 [module]`. What the compiler appended to the name (`.isra.0`) is left out.
fn function(line: &str) -> Option<&str> {
    let (name, _) = line.split_once("+0x")?;
    let name = name.split('.').next().unwrap_or(name);
    (!name.starts_with('?')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn functions_are_taken_from_the_processor_and_from_the_trace() {
        let report = lines(
            "[ 9.1] WARNING: CPU: 0 PID: 77 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110
[ 9.1] RIP: 0010:refcount_warn_saturate+0xba/0x110
[ 9.1] RAX: 0000000000000000 RBX: ff3d1e2985e64128 RCX: 0000000000000027
[ 9.1] Call Trace:
[ 9.1]  <TASK>
[ 9.1]  ? __warn+0x81/0x130
[ 9.1]  __rxe_cleanup+0x155/0x160 [rdma_rxe]
[ 9.1]  do_task.isra.0+0x26/0x30 [rdma_rxe]
[ 9.1]  </TASK>
[ 9.1] something else+0x1/0x2",
        );
        let expected = ["refcount_warn_saturate", "__rxe_cleanup", "do_task"];
        assert_eq!(stack(&report)[..3], expected);
    }

    #[test]
    fn a_line_alone_has_no_stack() {
        assert_eq!(
            stack(&lines("[ 12.0] rdma_rxe: rxe-mr: leaked 1 elem")),
            [""; 0]
        );
    }
}
