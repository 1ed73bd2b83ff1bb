//! The tables of symbols of the libraries for C programs beside what headers declare (`verbs_h.txt`, and
//! `direct_h.txt` for direct verbs), and beside what rdma-core's libraries export (`exports.txt`).

use std::collections::BTreeSet;
use std::fs;

use checks::workspace;

#[path = "../../../src/c/library/versions.rs"]
#[allow(dead_code, reason = "the build scripts use the rest")]
mod versions;

/// The libraries, with their tables.
const TABLES: [(&str, &str); 6] = [
    ("libibverbs.so.1", VERBS),
    ("librdmacm.so.1", "src/c/rdmacm/library/symbols.txt"),
    ("libmlx5.so.1", "src/c/providers/mlx5/symbols.txt"),
    ("libefa.so.1", "src/c/providers/efa/symbols.txt"),
    ("libmana.so.1", "src/c/providers/mana/symbols.txt"),
    ("libhns.so.1", "src/c/providers/hns/symbols.txt"),
];

const VERBS: &str = "src/c/library/symbols.txt";

/// The lines of a table: a name, and what stands behind it.
fn lines<'a>(table: &'a str, between: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.map(move |line| {
        let (name, behind) = line.split_once(between).unwrap_or((line, ""));
        (name.trim(), behind.trim())
    })
}

/// The functions that may stand for a name which is missing and fails so.
fn stand_ins(fails_by: &str) -> &[&str] {
    match fails_by {
        "errno" => &["missing"],
        "-1" => &["missing_number", "missing_size"],
        "object" => &["missing_object"],
        "nothing" => &["missing", "ignored"],
        "no" => &["no"],
        // Of the versions of 2006 alone.
        "value" => &["missing", "missing_object"],
        other => panic!("{other} is no way to fail"),
    }
}

#[test]
fn what_is_declared_is_there_and_fails_as_it_should() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let verbs = read("tests/checks/verbs_h.txt");
    fail_as_declared(&verbs, &read(VERBS));
    let direct = read("tests/checks/direct_h.txt");
    let direct_tables = TABLES
        .iter()
        .filter(|(_, table)| table.contains("providers"));
    let tables: String = direct_tables.map(|(_, table)| read(table)).collect();
    fail_as_declared(&direct, &tables);
}

/// The functions of libmlx5 that programs for GPUs, UCX, SPDK and perftest call, with the node by which they
/// look them up.
const CALLED_OF_MLX5: [(&str, &[&str]); 11] = [
    ("MLX5_1.0", &["query_device"]),
    ("MLX5_1.1", &["create_cq"]),
    ("MLX5_1.2", &["init_obj"]),
    ("MLX5_1.3", &["create_qp"]),
    (
        "MLX5_1.7",
        &[
            "devx_alloc_uar",
            "devx_free_uar",
            "devx_general_cmd",
            "devx_obj_create",
            "devx_obj_destroy",
            "devx_obj_modify",
            "devx_obj_query",
            "devx_query_eqn",
            "devx_umem_reg",
            "devx_umem_dereg",
            "open_device",
        ],
    ),
    (
        "MLX5_1.8",
        &["is_supported", "devx_qp_query", "devx_qp_modify"],
    ),
    (
        "MLX5_1.10",
        &["create_mkey", "destroy_mkey", "qp_ex_from_ibv_qp_ex"],
    ),
    (
        "MLX5_1.11",
        &[
            "devx_create_event_channel",
            "devx_destroy_event_channel",
            "devx_subscribe_devx_event",
            "devx_get_event",
        ],
    ),
    ("MLX5_1.14", &["modify_qp_lag_port", "query_qp_lag_port"]),
    ("MLX5_1.17", &["modify_qp_udp_sport"]),
    ("MLX5_1.19", &["devx_umem_reg_ex"]),
];

/// As [`CALLED_OF_MLX5`], of nodes whose names are refused in part: for memory past the processor, and for
/// encryption, which is documented to be missing.
const ALSO_CALLED: [(&str, &str, bool); 5] = [
    ("MLX5_1.25", "reg_dmabuf_mr", true),
    ("MLX5_1.25", "get_data_direct_sysfs_path", true),
    ("MLX5_1.21", "crypto_login", false),
    ("MLX5_1.21", "dek_create", false),
    ("MLX5_1.21", "dek_destroy", false),
];

/// Would catch a name that programs rely on and that is refused, or stands in another node than they ask for,
/// or that no test calls. The program `direct` says of each the same here and on libmlx5.
#[test]
fn what_programs_call_of_libmlx5_works_or_is_refused_as_documented() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let table = read("src/c/providers/mlx5/symbols.txt");
    let (calls, guide) = (read("tests/c_abi/direct.c"), read("docs/c-abi.md"));
    let works = |node: &'static str, name: &&'static str| (node, *name, true);
    let all: Vec<_> = CALLED_OF_MLX5
        .iter()
        .flat_map(|(node, names)| names.iter().map(|name| works(node, name)))
        .chain(ALSO_CALLED)
        .collect();
    assert_eq!(all.len(), 34);
    for (node, name, works) in all {
        let of_node = table
            .split("\n\n")
            .find(|part| part.starts_with(&format!("{node}\n")));
        let of_node = of_node.unwrap_or_else(|| panic!("there is no node {node}"));
        let whole = format!("mlx5dv_{name}");
        let function = lines(of_node, "=").find(|(symbol, _)| *symbol == whole);
        let (_, function) = function.unwrap_or_else(|| panic!("{name} is not in {node}"));
        assert_eq!(function.is_empty(), works, "{name} is {function}");
        // There is nothing to destroy where nothing is created, and others are newer than the C headers:
        // `asked::data_direct` has them in Rust.
        let is_left_out = node == "MLX5_1.25" || name == "dek_destroy";
        let is_called = calls.contains(&format!("{whole}(")) || is_left_out;
        assert!(is_called, "no test calls {name}");
        let brief = name.strip_prefix("devx").unwrap_or(&whole);
        assert!(
            !works || guide.contains(brief),
            "{name} is not in the guide"
        );
    }
}

fn fail_as_declared(declared: &str, symbols: &str) {
    for (name, fails_by) in lines(declared, " ") {
        let mut functions = lines(symbols, "=").filter(|(symbol, _)| *symbol == name);
        let (_, first) = functions
            .next()
            .unwrap_or_else(|| panic!("{name} is in no table"));
        let functions = functions.map(|(_, function)| function);
        for function in [first].into_iter().chain(functions) {
            let function = function.strip_prefix("missing::").unwrap_or(function);
            if function.starts_with("missing") || ["ignored", "no"].contains(&function) {
                let right = stand_ins(fails_by);
                assert!(
                    right.contains(&function),
                    "{name} is {function}, of {right:?}"
                );
            }
        }
    }
}

/// Catches a name that jumps to nothing: the library would not be linked.
#[test]
fn direct_verbs_lead_into_libibverbs() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let verbs = read(VERBS);
    let verbs = versions::parse(&verbs);
    for (soname, table) in TABLES
        .iter()
        .filter(|(_, table)| table.contains("providers"))
    {
        let table = read(table);
        for symbol in versions::parse(&table) {
            let wanted = format!("uverbs_{}", symbol.function.unwrap_or_default());
            let is_there =
                |own: &versions::Symbol<'_>| own.node == "UVERBS_1" && own.name == wanted;
            assert!(verbs.iter().any(is_there), "{soname}: no {wanted}");
        }
    }
}

/// Catches a name or a version of rdma-core's that a program may be linked to and that is not here, and data
/// that is a function here.
#[test]
fn what_is_exported_elsewhere_is_exported_here() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let exports = read("tests/checks/exports.txt");
    for (soname, table) in TABLES {
        let table = read(table);
        let ours: BTreeSet<String> = versions::parse(&table).iter().map(told).collect();
        let listed = exports_of(&exports, soname);
        let theirs: BTreeSet<String> = versions::parse(&listed).iter().map(told).collect();
        assert!(theirs.len() > 1, "exports.txt has nothing of {soname}");
        let missing: Vec<&String> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{soname} lacks {missing:?}");
    }
}

/// The nodes and names of a library in `exports.txt`, in the form of a table.
fn exports_of(exports: &str, soname: &str) -> String {
    let lines = exports.lines().skip_while(|line| *line != soname).skip(1);
    let of_library = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
    of_library
        .filter_map(|line| Some(format!("{}\n", line.strip_prefix("    ")?)))
        .collect()
}

fn told(symbol: &versions::Symbol<'_>) -> String {
    let kind = if symbol.function.is_some() {
        "function"
    } else {
        "data"
    };
    format!("{}@{}, a {kind}", symbol.name, symbol.node)
}
