//! The thread that looks after what waits.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// How often it looks.
const TICK: Duration = Duration::from_millis(2);

/// Starts the thread. It ends with the device.
pub fn start<D: Send + Sync + 'static>(device: &Arc<D>, tick: impl Fn(&D) + Send + 'static) {
    let device: Weak<D> = Arc::downgrade(device);
    thread::spawn(move || {
        loop {
            thread::sleep(TICK);
            let Some(device) = device.upgrade() else {
                return;
            };
            tick(&device);
        }
    });
}
