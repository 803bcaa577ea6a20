//! Handles, and the values that are found by them.
//!
//! A place is used again after its value is gone. Its generation then differs, so an old handle finds
//! nothing.

/// A compiled script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    index: u32,
    /// Distinguishes the script from an earlier one in the same place.
    generation: u32,
}

/// Values by their handles.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Handles<T> {
    /// Makes a set without values.
    pub fn new() -> Self {
        Handles { slots: Vec::new(), free: Vec::new() }
    }

    /// Keeps a value, and returns its handle.
    pub fn keep(&mut self, value: T) -> Handle {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Handle { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).expect("fewer values than memory");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Handle { index, generation: 0 }
    }

    /// Returns the value, and forgets it. Its handle is unknown from then on.
    pub fn take(&mut self, handle: Handle) -> Option<T> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation != handle.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(handle.index);
        Some(value)
    }

    /// The value of a handle.
    ///
    /// # Panics
    ///
    /// If the handle is unknown.
    pub fn get(&self, handle: Handle) -> &T {
        let slot = &self.slots[handle.index as usize];
        assert_eq!(slot.generation, handle.generation, "the script was forgotten");
        slot.value.as_ref().expect("a slot of this generation is filled")
    }
}
