//! Teardown: the rest of a large value that is unreachable, to be freed in steps.

/// The number of bytes of a piece that cost as much as a further piece.
const BYTES_PER_PIECE: usize = 4096;

/// The pieces of a value, which are freed a few at a time.
pub trait Rubble: Send {
    /// Frees pieces until they have [cost](cost_of) `max` or more, and returns their cost: less than `max`
    /// only if nothing is left. A piece of very many bytes is left for later, as garbage of its own.
    fn free_some(&mut self, max: usize) -> usize;
}

/// The cost of a piece of which `n_bytes` have been freed at once.
#[inline]
pub(crate) fn cost_of(n_bytes: usize) -> usize {
    1 + n_bytes / BYTES_PER_PIECE
}

/// Frees pieces until they have cost `max` or more, and returns their cost. `free` frees one and returns the
/// number of bytes that it freed at once.
pub(crate) fn free_pieces<P>(
    pieces: &mut impl Iterator<Item = P>,
    max: usize,
    mut free: impl FnMut(P) -> usize,
) -> usize {
    let mut cost = 0;
    while cost < max
        && let Some(piece) = pieces.next()
    {
        cost += cost_of(free(piece));
    }
    cost
}

/// Pieces that an iterator hands out.
pub(crate) struct Pieces<I: Iterator> {
    pieces: I,
    free: fn(I::Item) -> usize,
}

impl<I> Pieces<I>
where
    I: Iterator + Send + 'static,
    I::Item: Send + 'static,
{
    /// Makes rubble of pieces that `free` frees. It returns the number of bytes that it has freed at once.
    pub(crate) fn boxed(pieces: I, free: fn(I::Item) -> usize) -> Box<dyn Rubble> {
        Box::new(Pieces { pieces, free })
    }

    /// Makes rubble of pieces of few bytes each.
    pub(crate) fn small(pieces: I) -> Box<dyn Rubble> {
        Self::boxed(pieces, |piece| {
            drop(piece);
            0
        })
    }
}

impl<I> Rubble for Pieces<I>
where
    I: Iterator + Send,
    I::Item: Send,
{
    fn free_some(&mut self, max: usize) -> usize {
        free_pieces(&mut self.pieces, max, self.free)
    }
}

/// Heaps of rubble, freed from the last to the first.
impl Rubble for Vec<Box<dyn Rubble>> {
    fn free_some(&mut self, max: usize) -> usize {
        let mut cost = 0;
        while cost < max
            && let Some(last) = self.last_mut()
        {
            let wanted = max - cost;
            let spent = last.free_some(wanted);
            cost += spent;
            if spent < wanted {
                self.pop();
                // A heap counts as a piece, so that a step ends where there are many.
                cost += 1;
            }
        }
        cost
    }
}
