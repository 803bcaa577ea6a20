//! A list is the deque of its texts, whatever is done to it, and its parts are well formed.
#![no_main]

use std::collections::VecDeque;

use braid_storage::{
    entry::{db::Db, key::Key, time::Millis},
    keyspace::{Keyspace, shard::Shard},
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
    types::{
        list::{ListEnd, ListMut, ListRef, ListType, Part, Side},
        packed::{Element, Packed},
    },
};
use libfuzzer_sys::fuzz_target;

/// What to do, where, how many times the text is repeated, and the text.
type Step = (u8, u8, u8, Vec<u8>);

const NAME: &[u8] = b"list";

fn apply(list: &mut ListMut<'_>, model: &mut VecDeque<Vec<u8>>, step: &Step) {
    let (what, at, n_times, text) = step;
    let text = text.repeat(usize::from(*n_times));
    let end = if at % 2 == 0 { ListEnd::Left } else { ListEnd::Right };
    let index = usize::from(*at) % (model.len() + 1);
    match what % 7 {
        0 | 1 => {
            assert_eq!(list.push(end, [&text[..]].into_iter()), model.len() + 1);
            match end {
                ListEnd::Left => model.push_front(text),
                ListEnd::Right => model.push_back(text),
            }
        }
        2 => {
            let n = usize::from(*n_times);
            let mut popped = Vec::new();
            list.pop(end, n, |element| popped.push(element.to_vec()));
            let expected = (0..n).map_while(|_| match end {
                ListEnd::Left => model.pop_front(),
                ListEnd::Right => model.pop_back(),
            });
            assert!(expected.eq(popped));
        }
        3 => {
            let kept = index..model.len().min(index + usize::from(*n_times));
            *model = model.range(kept.clone()).cloned().collect();
            list.trim(kept);
        }
        4 => {
            assert_eq!(list.set(index as i64, &text), index < model.len());
            model.get_mut(index).into_iter().for_each(|slot| slot.clone_from(&text));
        }
        5 => {
            let Some(pivot) = model.get(index).cloned() else { return };
            let first = model.iter().position(|other| *other == pivot).expect("it is one of them");
            let side = if n_times % 2 == 0 { Side::Before } else { Side::After };
            model.insert(first + (side == Side::After) as usize, text.clone());
            assert_eq!(list.insert(side, &pivot, &text), Some(model.len()));
        }
        _ => {
            let Some(wanted) = model.get(index).cloned() else { return };
            let mut n_removed = 0;
            while n_removed < usize::from(*n_times)
                && let Some(hit) = match end {
                    ListEnd::Left => model.iter().position(|other| *other == wanted),
                    ListEnd::Right => model.iter().rposition(|other| *other == wanted),
                }
            {
                model.remove(hit);
                n_removed += 1;
            }
            assert_eq!(list.remove(&wanted, end, usize::from(*n_times)), n_removed);
        }
    }
}

fn check(shard: &mut Shard, key: &Key<'_>, model: &VecDeque<Vec<u8>>) {
    let list: Option<ListRef<'_>> = shard.value(key).expect("it is a list");
    let Some(list) = list else { return assert!(model.is_empty()) };
    assert!(list.elements_from(0).map(Element::to_vec).eq(model.iter().cloned()));
    assert!(list.elements_from(0).rev().map(Element::to_vec).eq(model.iter().rev().cloned()));
    for part in list.parts() {
        if let Part::Packed(packed) = part {
            assert!(Packed::check(packed.bytes()).is_some_and(|packed| !packed.is_empty()));
        }
    }
}

fuzz_target!(|data: (i8, Vec<Step>)| {
    let (setting, steps) = data;
    let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Honoured);
    let (keyspace, mut shards) = Keyspace::new(router, 1);
    keyspace.thresholds().list_max_listpack_size.set(setting.into());
    let shard = &mut shards[0];
    shard.begin(Db(0), Millis(1));
    let key = Key { bytes: NAME, routed: keyspace.router().route(NAME) };
    let mut model = VecDeque::new();
    for step in &steps {
        let mut list = shard.value_or_create::<ListType>(&key, Event::Made).expect("it is a list");
        apply(&mut list, &mut model, step);
        drop(list);
        check(shard, &key, &model);
    }
});
