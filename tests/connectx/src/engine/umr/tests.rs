//! Who may change which key, what a window may cover, and lists of pages.

use super::*;
use crate::command::Status;
use crate::fixture::{self, create};
use crate::layout::{cmd, qpc};
use crate::object::mkey::{Part, Translation};
use crate::object::{mkey, qp};

const START: u64 = 0x7000_0000;
const LENGTH: u64 = 0x1000;
const REGION: u32 = 0x11;
const WINDOW: u32 = 0x22;
const ANY: u64 = 0xff_ffff;

/// A function with a region, a window that is not bound, and two queue pairs; another region in another
/// domain.
struct World {
    functions: Vec<Function>,
    region: u32,
    read_only: u32,
    foreign: u32,
    window: u32,
    queue_pairs: [u32; 2],
}

fn key(function: &mut Function, fields: &[(Field, u64)], variant: u32) -> Result<u32, Status> {
    let mut fields = fields.to_vec();
    fields.push((mkc::MKEY_7_0, variant.into()));
    let output = create(function, mkey::create, cmd::CONTEXT, &fields, &[0x1000])?;
    Ok(cmd::OBJECT.get32(&output) << 8 | variant)
}

fn world() -> Result<World, Status> {
    let mut function = fixture::function();
    let own = u64::from(function.objects.pds.insert(())?);
    let other = u64::from(function.objects.pds.insert(())?);
    let region = |function: &mut Function, pd, writes| {
        let fields = [
            (mkc::PD, pd),
            (mkc::START_ADDR, START),
            (mkc::LEN, LENGTH),
            (mkc::LOG_PAGE_SIZE, 12),
            (mkc::ACCESS_MODE_1_0, 1),
            (mkc::QPN, ANY),
            (mkc::LR, 1),
            (mkc::LW, writes),
        ];
        key(function, &fields, REGION)
    };
    let keys = (
        region(&mut function, own, 1)?,
        region(&mut function, own, 0)?,
        region(&mut function, other, 1)?,
    );
    let window = key(
        &mut function,
        &[
            (mkc::PD, own),
            (mkc::ACCESS_MODE_1_0, 2),
            (mkc::FREE, 1),
            (mkc::UMR_EN, 1),
            (mkc::QPN, ANY),
        ],
        WINDOW,
    )?;
    let mut queue_pair = || -> Result<u32, Status> {
        let uar = function.objects.uars.insert(Default::default())?;
        let fields = [
            (qpc::PD, own),
            (qpc::UAR_PAGE, uar.into()),
            (qpc::NO_SQ, 1),
            // No receive queue.
            (qpc::RQ_TYPE, 3),
        ];
        let output = create(&mut function, qp::create, cmd::QP_CONTEXT, &fields, &[])?;
        Ok(cmd::OBJECT.get32(&output))
    };
    let queue_pairs = [queue_pair()?, queue_pair()?];
    Ok(World {
        functions: vec![function],
        region: keys.0,
        read_only: keys.1,
        foreign: keys.2,
        window,
        queue_pairs,
    })
}

/// A bind of a window of type 2 to the region below, with this low byte from then on.
fn bind(below: u32, address: u64, length: u64, writes: u64, qpn: u32, tag: u8) -> KeyChange {
    let mut context = [0; 64];
    for (field, value) in [
        (mkc::START_ADDR, address),
        (mkc::LEN, length),
        (mkc::RW, writes),
        (mkc::RR, 1),
        (mkc::QPN, qpn.into()),
        (mkc::MKEY_7_0, tag.into()),
    ] {
        field.set(&mut context, value);
    }
    KeyChange {
        flags: flag::MUST_BE_FREE,
        mask: 1 | 1 << 6 | 1 << 13 | 1 << 14 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 29,
        context,
        window: Some((below, address)),
        list: None,
        layout: None,
    }
}

/// An invalidation by a queue pair, which keeps the key's low byte.
fn invalidate(tag: u8) -> KeyChange {
    let mut context = [0; 64];
    for (field, value) in [(mkc::FREE, 1), (mkc::QPN, ANY), (mkc::MKEY_7_0, tag.into())] {
        field.set(&mut context, value);
    }
    KeyChange {
        flags: flag::CHECK_QPN,
        mask: 1 << 13 | 1 << 14 | 1 << 29,
        context,
        window: None,
        list: None,
        layout: None,
    }
}

/// A change that gives a key a part of a region, and this length.
fn gather(below: u32, units: u64, length: u64) -> KeyChange {
    let mut context = [0; 64];
    mkc::LEN.set(&mut context, length);
    mkc::QPN.set(&mut context, ANY);
    mkc::RR.set(&mut context, 1);
    mkc::MKEY_7_0.set(&mut context, WINDOW.into());
    let part = Part {
        length,
        key: below,
        address: START,
    };
    KeyChange {
        flags: 0,
        mask: 1 | 1 << 13 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 29,
        context,
        window: None,
        list: None,
        layout: Some((units, Translation::Parts(vec![part]))),
    }
}

#[test]
fn a_key_is_given_parts_of_others_and_others_again() -> Result<(), Status> {
    let mut world = world()?;
    let [own, _] = world.queue_pairs;
    let (key, region, functions) = (world.window, world.region, &mut world.functions);
    let most = functions[0].objects.mkeys.get_mut(key >> 8)?;
    let roomy = mkc::TRANSLATIONS_OCTWORD_SIZE;
    let mut context = [0; 64];
    roomy.set(&mut context, 4);
    most.take(&context, std::iter::once(roomy));
    let refused = Err(Syndrome::MwBind);
    assert_eq!(
        apply(functions, 0, own, key, &gather(region, 8, 16)),
        refused
    );
    for length in [16, 32] {
        assert_eq!(
            apply(functions, 0, own, key, &gather(region, 4, length)),
            Ok(())
        );
        let found = functions[0].objects.mkeys.get(key >> 8)?;
        assert!(!found.is_free() && found.covers(0, length) && !found.covers(0, length + 1));
        assert!(found.allows(Access::RemoteRead) && !found.allows(Access::RemoteWrite));
    }
    let foreign = gather(region, 4, 16);
    let other = key & !0xff | 0x44;
    assert_eq!(
        apply(functions, 0, own, other, &foreign),
        refused,
        "another low byte"
    );
    Ok(())
}

#[test]
fn a_window_is_bound_and_taken_back_by_its_own_queue_pair() -> Result<(), Status> {
    let mut world = world()?;
    let [own, other] = world.queue_pairs;
    let functions = &mut world.functions;
    let bound = bind(world.region, START + 16, 64, 1, own, 0x33);
    assert_eq!(apply(functions, 0, own, world.window, &bound), Ok(()));
    let key = world.window & !0xff | 0x33;
    let found = functions[0].objects.mkeys.get(key >> 8)?;
    assert!(!found.is_free() && found.covers(START + 16, 64) && !found.covers(START, 17));
    assert!(found.is_for(own) && !found.is_for(other));
    let refused = Err(Syndrome::MwBind);
    for (name, qpn, key, change) in [
        ("bound already", own, key, bound.clone()),
        ("its old key", own, world.window, invalidate(0x33)),
        ("another queue pair", other, key, invalidate(0x33)),
        ("no such key", own, key + 0x10_0000, invalidate(0x33)),
        ("a region", own, world.region, invalidate(REGION as u8)),
    ] {
        assert_eq!(apply(functions, 0, qpn, key, &change), refused, "{name}");
    }
    assert_eq!(apply(functions, 0, own, key, &invalidate(0x33)), Ok(()));
    assert!(functions[0].objects.mkeys.get(key >> 8)?.is_free());
    assert_eq!(
        apply(functions, 0, own, key, &bound),
        Ok(()),
        "bound once more, by the key that it has"
    );
    assert!(functions[0].report.take().is_empty());
    Ok(())
}

#[test]
fn a_window_lies_in_its_region_and_gives_no_more_than_that() -> Result<(), Status> {
    let mut world = world()?;
    let [own, _] = world.queue_pairs;
    let bind = |below, address, length, writes| bind(below, address, length, writes, own, 0x33);
    let refused = Err(Syndrome::MwBind);
    for (name, change, expected) in [
        ("behind", bind(world.region, START + 1, LENGTH, 1), refused),
        ("before", bind(world.region, START - 1, 2, 1), refused),
        ("writes", bind(world.read_only, START, 8, 1), refused),
        ("domain", bind(world.foreign, START, 8, 1), refused),
        ("no region", bind(world.region + 1, START, 8, 1), refused),
        ("reads", bind(world.read_only, START, 8, 0), Ok(())),
    ] {
        let result = apply(&mut world.functions, 0, own, world.window, &change);
        assert_eq!(result, expected, "{name}");
    }
    Ok(())
}

#[test]
fn a_field_that_is_not_modelled_is_told() -> Result<(), Status> {
    let mut world = world()?;
    let [own, _] = world.queue_pairs;
    let mut change = bind(world.region, START, 8, 0, own, 0x33);
    change.mask |= 1 << 12;
    assert_eq!(
        apply(&mut world.functions, 0, own, world.window, &change),
        Err(Syndrome::MwBind)
    );
    let told = world.functions[0].report.take();
    assert!(told.len() == 1 && told[0].contains("0x1000"), "{told:?}");
    Ok(())
}

/// Where the driver's lists lie in memory, and pages of data.
const LIST: u64 = 0x3000;
const PAGES: [u64; 2] = [0x2000, 0x1000];
/// The key's entries, in units: as many as lie in two blocks.
const ROOM: u64 = 5;

/// A function with the driver's queue, its key for all memory, and a key that gets pages later.
fn driver() -> Result<(Vec<Function>, [u32; 2], KeyChange), Status> {
    let mut function = fixture::function();
    let pd = u64::from(function.objects.pds.insert(())?);
    let uar = function.objects.uars.insert(Default::default())?;
    let all = [
        (mkc::PD, pd),
        (mkc::LENGTH64, 1),
        (mkc::QPN, ANY),
        (mkc::LR, 1),
    ];
    let all = key(&mut function, &all, 0)?;
    let fields = [
        (mkc::PD, pd),
        (mkc::FREE, 1),
        (mkc::UMR_EN, 1),
        (mkc::ACCESS_MODE_1_0, 1),
        (mkc::QPN, ANY),
        (mkc::LOG_PAGE_SIZE, 12),
        (mkc::TRANSLATIONS_OCTWORD_SIZE, ROOM),
    ];
    let region = key(&mut function, &fields, REGION)?;
    let fields = [
        (qpc::ST, 0xc),
        (qpc::UAR_PAGE, uar.into()),
        (qpc::NO_SQ, 1),
        (qpc::RQ_TYPE, 3),
    ];
    let output = create(&mut function, qp::create, cmd::QP_CONTEXT, &fields, &[])?;
    let mut context = [0; 64];
    for (field, value) in [
        (mkc::PD, pd),
        (mkc::START_ADDR, START),
        (mkc::LEN, 2 * LENGTH),
        (mkc::LOG_PAGE_SIZE, 12),
        (mkc::MKEY_7_0, REGION.into()),
        (mkc::LR, 1),
        (mkc::LW, 1),
    ] {
        field.set(&mut context, value);
    }
    let entries = Segment::Memory {
        length: 64,
        key: all,
        address: LIST,
    };
    let change = KeyChange {
        flags: flag::MUST_BE_FREE,
        mask: 1 | 1 << 1 | 1 << 6 | 1 << 7 | 1 << 13 | 1 << 17 | 1 << 18 | 1 << 29,
        context,
        window: None,
        list: Some(PageList { offset: 0, entries }),
        layout: None,
    };
    Ok((vec![function], [cmd::OBJECT.get32(&output), region], change))
}

fn write_list(function: &Function, entries: &[u64]) {
    let mut bytes = [0; 64];
    for (to, entry) in bytes.chunks_mut(8).zip(entries) {
        to.copy_from_slice(&entry.to_be_bytes());
    }
    assert_eq!(function.memory.write(LIST, &bytes), Ok(()));
}

/// Whether the device may read and write the first byte of the second page.
fn reaches(function: &Function, key: u32) -> (bool, bool) {
    let pd = function
        .objects
        .mkeys
        .get(key >> 8)
        .map_or(0, MemoryKey::pd);
    let by = User { qpn: 5, pd };
    let address = START + LENGTH;
    let place = Place {
        key,
        address,
        length: 1,
    };
    let mut bytes = Vec::new();
    (
        translate::read(function, by, place, Access::LocalRead, &mut bytes).is_ok(),
        translate::write(function, by, place, Access::LocalWrite, b"x").is_ok(),
    )
}

#[test]
fn the_driver_loads_pages_and_takes_them_away() -> Result<(), Status> {
    let (mut functions, [driver, region], mut change) = driver()?;
    write_list(&functions[0], &PAGES.map(|page| page | 3));
    assert_eq!(apply(&mut functions, 0, driver, region, &change), Ok(()));
    assert_eq!(reaches(&functions[0], region), (true, true));
    let mut byte = [0];
    assert_eq!(functions[0].memory.read(PAGES[1], &mut byte), Ok(()));
    assert_eq!(&byte, b"x", "the second page");
    // The exporter of a dma-buf moves it: no context, and entries without rights.
    (change.flags, change.mask) = (flag::MUST_NOT_BE_FREE, 0);
    for (bits, expected) in [(0, (false, false)), (1, (true, false)), (3, (true, true))] {
        write_list(&functions[0], &PAGES.map(|page| page | bits));
        assert_eq!(apply(&mut functions, 0, driver, region, &change), Ok(()));
        assert_eq!(reaches(&functions[0], region), expected, "bits {bits}");
    }
    assert!(functions[0].report.take().is_empty());
    Ok(())
}

#[test]
fn a_list_lies_in_memory_and_fits_into_the_key() -> Result<(), Status> {
    let (mut functions, [driver, region], change) = driver()?;
    let with = |offset, key, address| {
        let entries = Segment::Memory {
            length: 64,
            key,
            address,
        };
        KeyChange {
            list: Some(PageList { offset, entries }),
            ..change.clone()
        }
    };
    let Some(Segment::Memory { key: all, .. }) = change.list.as_ref().map(|list| &list.entries)
    else {
        panic!("the list lies in memory");
    };
    let all = *all;
    let (unread, full) = (Err(Syndrome::LocalProtection), Err(Syndrome::MwBind));
    for (name, change, expected) in [
        ("no such key", with(0, all + 0x1000, LIST), unread),
        ("no memory", with(0, all, 0x10_0000), unread),
        ("behind its room", with(8, all, LIST), full),
        ("the last block", with(4, all, LIST), Ok(())),
    ] {
        let result = apply(&mut functions, 0, driver, region, &change);
        assert_eq!(result, expected, "{name}");
        let found = functions[0].objects.mkeys.get(region >> 8)?;
        assert_eq!(found.is_free(), expected.is_err(), "{name}");
    }
    assert_eq!(reaches(&functions[0], region), (false, false));
    Ok(())
}

#[test]
fn a_queue_pair_gives_a_region_pages_and_a_new_name() -> Result<(), Status> {
    const RENAMED: u32 = REGION + 1;
    let mut world = world()?;
    let [own, _] = world.queue_pairs;
    let function = &mut world.functions[0];
    let region = |function: &mut Function, pd: u32| {
        let fields = [
            (mkc::PD, pd.into()),
            (mkc::FREE, 1),
            (mkc::UMR_EN, 1),
            (mkc::ACCESS_MODE_1_0, 1),
            (mkc::QPN, ANY),
            (mkc::LOG_PAGE_SIZE, 12),
            (mkc::TRANSLATIONS_OCTWORD_SIZE, ROOM),
        ];
        key(function, &fields, REGION)
    };
    let domain = |function: &Function, key: u32| -> Result<u32, Status> {
        Ok(function.objects.mkeys.get(key >> 8)?.pd())
    };
    let (pd, other) = (
        domain(function, world.region)?,
        domain(function, world.foreign)?,
    );
    let (region, foreign) = (region(function, pd)?, region(function, other)?);
    let mut context = [0; 64];
    for (field, value) in [
        (mkc::START_ADDR, START),
        (mkc::LEN, 2 * LENGTH),
        (mkc::LOG_PAGE_SIZE, 12),
        (mkc::ACCESS_MODE_1_0, 1),
        (mkc::MKEY_7_0, RENAMED.into()),
        (mkc::LR, 1),
        (mkc::LW, 1),
    ] {
        field.set(&mut context, value);
    }
    let mut entries = vec![0; 64];
    for (to, page) in entries.chunks_mut(8).zip(PAGES) {
        to.copy_from_slice(&(page | 3).to_be_bytes());
    }
    let change = KeyChange {
        flags: flag::MUST_BE_FREE,
        mask: 1 | 1 << 1 | 1 << 6 | 1 << 13 | 1 << 17 | 1 << 18 | 1 << 29,
        context,
        window: None,
        list: Some(PageList {
            offset: 0,
            entries: Segment::Inline(entries),
        }),
        layout: None,
    };
    let refused = Err(Syndrome::MwBind);
    let (renamed, of_another) = (region & !0xff | RENAMED, foreign & !0xff | RENAMED);
    let functions = &mut world.functions;
    // By its old name, and in another domain.
    assert_eq!(apply(functions, 0, own, region, &change), refused);
    assert_eq!(apply(functions, 0, own, of_another, &change), refused);
    assert_eq!(apply(functions, 0, own, renamed, &change), Ok(()));
    assert_eq!(reaches(&functions[0], renamed), (true, true));
    assert_eq!(reaches(&functions[0], region), (false, false));
    Ok(())
}
