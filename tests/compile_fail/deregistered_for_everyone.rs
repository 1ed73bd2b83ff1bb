//! A region that others may have requests for is deregistered by an import: nobody asks the queues then.

use uverbs::import::ImportedMr;

fn end(mr: ImportedMr) {
    let _ = mr.deregister_for_everyone();
}

fn main() {}
