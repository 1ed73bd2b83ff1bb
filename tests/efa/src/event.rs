//! Event queues, of completions and of what happens to the device.

use crate::function::Function;

/// The groups of asynchronous events that the driver may turn on, as bits.
pub(crate) const GROUPS: u32 = 0x1e;

/// A queue of completion events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub(crate) base: u64,
    pub(crate) depth: u16,
    pub(crate) vector: u32,
    /// Events so far.
    pub(crate) events: u32,
    /// How many there were at the last interrupt.
    pub(crate) told: u32,
    pub(crate) is_armed: bool,
}

/// Bytes of an event of completions.
pub(crate) const ENTRY: u64 = 16;

/// Takes the register that arms a queue.
///
/// The driver does not say which events it has seen. One that came since the last interrupt may have come
/// between the driver's last look and this, so there is an interrupt at once.
pub(crate) fn arm(function: &mut Function, value: u32) {
    const ARM: u32 = 1 << 31;
    let number = value & 0xffff;
    match function.objects.eqs.get_mut(number) {
        Ok(queue) if value == number | ARM => {
            queue.is_armed = true;
            tell(function, number);
        }
        _ => function.violation(format_args!("the doorbell of event queues has {value:#x}")),
    }
}

/// Tells the driver that a completion queue has entries.
pub(crate) fn completion(function: &mut Function, eqn: u32, cqn: u32) {
    if function.faults.lose_event() {
        return;
    }
    let Ok(queue) = function.objects.eqs.get_mut(eqn) else {
        return;
    };
    let depth = u32::from(queue.depth);
    let place = queue.base + u64::from(queue.events % depth) * ENTRY;
    let phase = u32::from((queue.events / depth).is_multiple_of(2));
    queue.events += 1;
    // Bits 8 to 1 are the kind of the event: 0.
    let memory = &function.memory;
    let written = memory
        .write(place + 4, &[0; 4])
        .and_then(|()| memory.write(place + 8, &u64::from(cqn).to_le_bytes()))
        .and_then(|()| memory.write(place, &phase.to_le_bytes()));
    if let Err(unmapped) = written {
        function.violation(format_args!(
            "event queue {eqn} is not in memory: {unmapped:x?}"
        ));
    }
    tell(function, eqn);
}

/// Raises an interrupt if the queue is armed and has events of which none was told.
fn tell(function: &mut Function, eqn: u32) {
    let Ok(queue) = function.objects.eqs.get_mut(eqn) else {
        return;
    };
    if queue.is_armed && queue.events != queue.told {
        queue.is_armed = false;
        queue.told = queue.events;
        function.vectors.raise(queue.vector);
    }
}

/// The queue of what happens to the device.
#[derive(Debug, Default)]
pub(crate) struct AsyncQueue {
    pub(crate) base: u64,
    depth: u16,
    vector: u32,
    events: u32,
    consumed: u32,
    /// The groups that are turned on.
    pub(crate) enabled: u32,
}

/// Bytes of such an event.
const ASYNC_ENTRY: usize = 64;

impl AsyncQueue {
    /// Takes the register with the form of the queue.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn set(&mut self, caps: u32) -> Result<(), String> {
        let (depth, entry) = (caps as u16, caps >> 16 & 0xff);
        if !depth.is_power_of_two() || entry != ASYNC_ENTRY as u32 {
            return Err(format!("a queue of {depth} events of {entry} bytes"));
        }
        self.depth = depth;
        self.vector = caps >> 24;
        Ok(())
    }

    /// Takes the register with the count of events that the driver has taken.
    ///
    /// # Errors
    /// If that are more than there were.
    pub(crate) fn consumed(&mut self, count: u32) -> Result<(), String> {
        if count.wrapping_sub(self.consumed) > self.events.wrapping_sub(self.consumed) {
            return Err(format!("{count} events are taken of {}", self.events));
        }
        self.consumed = count;
        Ok(())
    }
}

/// Tells the driver of an event of this group.
///
/// # Errors
/// If the driver has not asked for the group, or has no room.
pub(crate) fn notify(function: &mut Function, group: u16) -> Result<(), String> {
    let queue = &mut function.objects.events;
    if 1 << group & queue.enabled == 0 {
        return Err(format!("the driver has not turned on group {group}"));
    }
    let (depth, unread) = (
        u32::from(queue.depth),
        queue.events.wrapping_sub(queue.consumed),
    );
    if unread >= depth {
        return Err("the driver has taken none of its events".to_owned());
    }
    let place = queue.base + u64::from(queue.events % depth) * ASYNC_ENTRY as u64;
    let phase = u8::from((queue.events / depth).is_multiple_of(2));
    queue.events += 1;
    let mut entry = [0; ASYNC_ENTRY];
    entry[..2].copy_from_slice(&group.to_le_bytes());
    let memory = &function.memory;
    memory
        .write(place, &entry)
        .and_then(|()| memory.write(place + 4, &[phase]))
        .map_err(|unmapped| format!("{unmapped:x?}"))?;
    function.vectors.raise(queue.vector);
    Ok(())
}
