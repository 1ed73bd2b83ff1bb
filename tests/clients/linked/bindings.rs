//! The build script of ibverbs-sys, in place of its own, which builds all of rdma-core for its header: this
//! one takes the header and the library of the distribution.

use std::env;
use std::path::PathBuf;

fn main() {
    // Where `cargo vm` has put libibverbs-dev; empty if the machine has it itself.
    let root = PathBuf::from(env::var_os("LIBIBVERBS_ROOT").expect("`cargo vm clients` builds this"));
    println!("cargo::rerun-if-env-changed=LIBIBVERBS_ROOT");
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    println!("cargo::rustc-link-search=native={}", libraries.display());
    println!("cargo::rustc-link-lib=ibverbs");
    let modules = [
        "ibv_port_state",
        "ibv_qp_state",
        "ibv_qp_type",
        "ibv_wc_opcode",
        "ibv_wc_status",
        "ibv_wr_opcode",
    ];
    let flags = [
        "ibv_access_flags",
        "ibv_port_cap_flags",
        "ibv_qp_attr_mask",
        "ibv_send_flags",
        "ibv_wc_flags",
    ];
    let mut builder = bindgen::builder()
        .header_contents("libibverbs.h", "#include <infiniband/verbs.h>\n")
        .clang_arg(format!("-I{}", root.join("usr/include").display()))
        .allowlist_function("_?ibv_.*")
        .allowlist_type("ibv_.*")
        .allowlist_var("IBV_LINK_LAYER_.*")
        // The crate has it by hand.
        .blocklist_type("ibv_wc")
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_debug(true);
    for name in modules {
        builder = builder.constified_enum_module(name);
    }
    for name in flags {
        builder = builder.bitfield_enum(name);
    }
    let bindings = builder.generate().expect("the header is read by libclang");
    let file = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says")).join("bindings.rs");
    bindings.write_to_file(file).expect("cargo's directory can be written");
}
