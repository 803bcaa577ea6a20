//! What is left of a large value that nobody can reach any more, to be freed in steps.

/// The pieces of a value, which are freed a few at a time.
pub trait Rubble: Send {
    /// Frees up to `n` pieces. None is much more work than an entry of a table: a piece that may be is left for later as garbage of
    /// its own.
    fn free_some(&mut self, n: usize);

    /// How many pieces are left at least; 0 if there is none.
    fn n_left(&self) -> usize;
}

/// Pieces that an iterator hands out.
pub(crate) struct Pieces<I: Iterator> {
    pieces: I,
    free: fn(I::Item),
}

impl<I> Pieces<I>
where
    I: ExactSizeIterator + Send + 'static,
    I::Item: Send + 'static,
{
    /// Pieces that are freed as `free` does it.
    pub(crate) fn boxed(pieces: I, free: fn(I::Item)) -> Box<dyn Rubble> {
        Box::new(Pieces { pieces, free })
    }
}

impl<I> Rubble for Pieces<I>
where
    I: ExactSizeIterator + Send,
    I::Item: Send,
{
    fn free_some(&mut self, n: usize) {
        self.pieces.by_ref().take(n).for_each(self.free);
    }

    fn n_left(&self) -> usize {
        self.pieces.len()
    }
}

/// Heaps of rubble, freed from the last to the first.
impl Rubble for Vec<Box<dyn Rubble>> {
    fn free_some(&mut self, n: usize) {
        let mut n_left = n;
        while let Some(last) = self.last_mut().filter(|_| n_left > 0) {
            let before = last.n_left();
            last.free_some(n_left);
            // An empty heap counts as a piece, so that a step ends where there are many.
            n_left = n_left.saturating_sub(before.saturating_sub(last.n_left()).max(1));
            if last.n_left() == 0 {
                self.pop();
            }
        }
    }

    fn n_left(&self) -> usize {
        self.iter().map(|rubble| rubble.n_left().max(1)).sum()
    }
}
