//! Two queue pairs of one process, two WRITEs and a completion.

#![forbid(unsafe_code)]

use uverbs::{Access, Caps, Inline, Rc};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The device named on the command line, or the first one.
    let devices = uverbs::devices()?;
    let name = std::env::args().nth(1);
    let name = name
        .as_deref()
        .or_else(|| devices.first().map(|device| device.name()));
    let context = uverbs::open(name.ok_or("this machine has no RDMA device")?)?;

    // A protection domain and memory in it. The region owns the memory until it is deregistered.
    let pd = context.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut source = pd.register(vec![0u8; 4096], access)?;
    let target = pd.register(vec![0u8; 4096], access)?;

    // Two queue pairs that report to one completion queue, connected to each other. Between two hosts, first
    // exchange the endpoints and `target.remote()` over another connection, such as TCP.
    let mut cq = context.create_cq(64)?;
    let mut here = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let mut there = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let (a, b) = (here.endpoint()?, there.endpoint()?);
    here.connect(&b)?;
    there.connect(&a)?;

    // Two RDMA WRITEs and one doorbell. Only the second asks for a completion.
    source.write_at(0, b"hello, ")?;
    let mut batch = here.batch();
    batch
        .unsignaled(0)
        .write(source.slice(..7)?, target.remote().slice(..7)?)?;
    batch
        .signaled(7)
        .write(Inline(b"verbs"), target.remote().slice(7..)?)?;
    batch.ring()?;

    let mut done = false;
    while !done {
        for completion in &mut cq.poll()? {
            println!("{} {:?}", completion.wr_id(), completion.result()?);
            done = true;
        }
    }

    let mut text = [0; 12];
    target.read_at(0, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
