//! A replica's link: what its connection sends after PSYNC.

use std::sync::Arc;

use braid_journal::{
    follower::{Follower, Taken},
    intake::Ticket,
    spool::Spools,
    stream::{ChangeStream, Lsn},
};
use bytes::Bytes;
use memchr::memmem;

use super::{
    copy_payload::PayloadProgress,
    full_copy::FullCopy,
    replicas::{Replica, ReplicaState},
};
use crate::warning;

/// The bytes of a copy that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// The source of the output of a replica's connection.
pub struct ReplicaLink {
    /// The replica.
    pub replica: Arc<Replica>,
    source: LinkSource,
    /// Whether the replica asked by SYNC, and gets no reply but the copy.
    is_old: bool,
    /// Whether it knows deadlines of fields.
    knows_field_deadlines: bool,
    /// The bytes that were kept in memory for it at the last [`may_wait`](Self::may_wait).
    bytes_behind: u64,
}

enum LinkSource {
    /// A full copy is to begin.
    AwaitsCopy,
    /// A full copy.
    Copy { copy: Arc<FullCopy>, at: u64, head: Head },
    /// The stream from a place on.
    GoesOn(Lsn),
    /// The stream, once the replica has the copy.
    Follows(Follower),
    /// The stream does not have the place any more.
    Lost,
    /// Nothing more: it wanted the copy only.
    Done,
}

/// The part before the bytes of a copy that is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Nothing,
    Reply,
    Length,
}

/// The next output.
pub enum LinkOutput {
    /// These bytes.
    Bytes(Bytes),
    /// Nothing yet.
    Later,
    /// Nothing any more.
    End,
    /// The copy has failed.
    Failed,
    /// The stream has a command that the replica does not know.
    Unknown(&'static str),
}

impl ReplicaLink {
    /// A link whose replica waits for a full copy.
    pub fn awaiting_copy(replica: Arc<Replica>, is_old: bool) -> Self {
        Self::new(replica, LinkSource::AwaitsCopy, is_old)
    }

    /// A link whose replica goes on where it was.
    pub fn going_on(replica: Arc<Replica>, place: Lsn) -> Self {
        replica.set_state(ReplicaState::Online);
        replica.keep_from(Some(place));
        Self::new(replica, LinkSource::GoesOn(place), false)
    }

    fn new(replica: Arc<Replica>, source: LinkSource, is_old: bool) -> Self {
        Self { replica, source, is_old, knows_field_deadlines: true, bytes_behind: u64::MAX }
    }

    /// Takes the place in the stream at which the replica goes on, unless another thread works with the
    /// stream's end at this moment: the link's thread serves others, and does not wait.
    pub fn resume<C>(&mut self, stream: &ChangeStream<C>, spools: &Spools) {
        let LinkSource::GoesOn(place) = self.source else { return };
        let Some(follower) = stream.try_resume(place) else { return };
        self.source = match follower.or_else(|| spools.resume(place, stream.n_jumps())) {
            Some(follower) => LinkSource::Follows(follower),
            // Nothing has this place any more that had it at the answer to PSYNC.
            None => LinkSource::Lost,
        };
    }

    /// Keeps a place in a spool, and no pieces of the stream in memory, if these are more than `most_bytes`.
    /// Returns whether it has moved there just now.
    pub fn relieve(&mut self, spools: &Spools, end: Lsn, most_bytes: u64) -> bool {
        let relieve = |follower: &mut Follower| {
            let n_behind = end.0.saturating_sub(follower.lsn().0);
            n_behind > most_bytes && follower.pieces().is_some() && spools.relieve(follower)
        };
        let has_moved = match &mut self.source {
            LinkSource::Copy { copy, .. } => relieve(&mut copy.start.follower()),
            LinkSource::Follows(follower) => relieve(follower),
            _ => false,
        };
        // Other links of the copy may have moved its place.
        if has_moved || self.is_spooled() {
            self.replica.keep_from(None);
        }
        has_moved
    }

    /// Whether it reads a spool, or will.
    pub fn is_spooled(&self) -> bool {
        match &self.source {
            LinkSource::Copy { copy, .. } => copy.start.follower().pieces().is_none(),
            LinkSource::Follows(follower) => follower.pieces().is_none(),
            _ => false,
        }
    }

    /// Whether it may have `n_behind` bytes in memory although they are too many: its spool takes them.
    pub fn may_wait(&mut self, n_behind: u64) -> bool {
        let n_before = std::mem::replace(&mut self.bytes_behind, n_behind);
        if !self.is_spooled() {
            self.bytes_behind = u64::MAX;
            return false;
        }
        n_behind < n_before
    }

    /// Notes whether its replica knows deadlines of fields.
    pub fn with_field_deadlines(mut self, knows: bool) -> Self {
        self.knows_field_deadlines = knows;
        self
    }

    /// Begins the copy, if it is for this replica and it waits for one.
    pub fn begin_copy(&mut self, copy: &Arc<FullCopy>) {
        if matches!(self.source, LinkSource::AwaitsCopy) && copy.is_for(self.replica.client) {
            self.replica.set_state(ReplicaState::AwaitsCopyEnd);
            self.replica.keep_from(Some(copy.start.follower().memory_from()));
            self.source = LinkSource::Copy { copy: Arc::clone(copy), at: 0, head: Head::Nothing };
        }
    }

    /// Whether an empty line may be sent to show that the server is alive.
    pub fn may_send_newline(&self) -> bool {
        match &self.source {
            LinkSource::AwaitsCopy => true,
            LinkSource::Copy { head, .. } => *head == Head::Reply,
            LinkSource::GoesOn(_) | LinkSource::Follows(_) | LinkSource::Lost | LinkSource::Done => false,
        }
    }

    /// The place from which on the stream is kept in memory for it.
    pub fn memory_from(&self) -> Option<Lsn> {
        match &self.source {
            LinkSource::AwaitsCopy | LinkSource::Lost | LinkSource::Done => None,
            LinkSource::GoesOn(place) => Some(*place),
            LinkSource::Copy { copy, .. } => Some(copy.start.follower().memory_from()),
            LinkSource::Follows(follower) => Some(follower.memory_from()),
        }
    }

    /// Whether there is something to send now.
    pub fn has_more(&self, reached: Ticket) -> bool {
        match &self.source {
            LinkSource::AwaitsCopy | LinkSource::Done => false,
            LinkSource::GoesOn(_) | LinkSource::Lost => true,
            LinkSource::Copy { copy, at, head } => match head {
                Head::Nothing => true,
                Head::Reply => self.is_marked(copy) || copy.payload.progress() != PayloadProgress::Grows,
                Head::Length => {
                    *at < copy.payload.n_bytes() || copy.payload.progress() != PayloadProgress::Grows
                }
            },
            LinkSource::Follows(follower) => {
                self.replica.state() == ReplicaState::Online && follower.has_more(reached)
            }
        }
    }

    fn is_marked(&self, copy: &FullCopy) -> bool {
        copy.is_marked && self.replica.said().takes_marked_end
    }

    /// The next bytes to send. Those of the stream have tickets up to `reached`.
    pub fn next(&mut self, reached: Ticket) -> LinkOutput {
        if !self.has_more(reached) {
            return if matches!(self.source, LinkSource::Done) { LinkOutput::End } else { LinkOutput::Later };
        }
        match &mut self.source {
            LinkSource::AwaitsCopy | LinkSource::GoesOn(_) | LinkSource::Done => LinkOutput::Later,
            LinkSource::Lost => LinkOutput::Failed,
            LinkSource::Copy { .. } => self.next_of_copy(),
            LinkSource::Follows(_) => self.next_of_stream(reached),
        }
    }

    fn next_of_stream(&mut self, reached: Ticket) -> LinkOutput {
        let LinkSource::Follows(follower) = &mut self.source else { return LinkOutput::Later };
        let (bytes, unknown) = match follower.take(reached) {
            Ok(Some(Taken::Piece(bytes))) => {
                let unknown = if self.knows_field_deadlines { None } else { unknown_command(&bytes) };
                (bytes, unknown)
            }
            Ok(Some(Taken::Part(bytes, found))) => (bytes, found.filter(|_| !self.knows_field_deadlines)),
            Ok(None) => return LinkOutput::Later,
            Err(error) => {
                warning!("The spool for slow replicas cannot be read: {error}");
                return LinkOutput::Failed;
            }
        };
        self.replica.keep_from(follower.pieces().map(|pieces| pieces.lsn()));
        unknown.map_or(LinkOutput::Bytes(bytes), LinkOutput::Unknown)
    }

    fn next_of_copy(&mut self) -> LinkOutput {
        let LinkSource::Copy { copy, at, head } = &self.source else { return LinkOutput::Later };
        let (copy, at, head) = (Arc::clone(copy), *at, *head);
        let is_marked = self.is_marked(&copy);
        // This comes before the length is read: a payload that is whole does not grow.
        let progress = copy.payload.progress();
        if progress == PayloadProgress::Failed {
            return LinkOutput::Failed;
        }
        match head {
            Head::Nothing => {
                self.go_to(copy.clone(), at, Head::Reply);
                let reply = format!("+FULLRESYNC {} {}\r\n", copy.id.as_str(), copy.offset);
                LinkOutput::Bytes(if self.is_old { Bytes::new() } else { reply.into() })
            }
            Head::Reply => {
                let length = match is_marked {
                    true => format!("$EOF:{}\r\n", copy.mark.as_str()),
                    false => {
                        self.replica.set_state(ReplicaState::Copies);
                        format!("${}\r\n", copy.payload.n_bytes())
                    }
                };
                self.go_to(copy, at, Head::Length);
                LinkOutput::Bytes(length.into())
            }
            Head::Length => {
                let Ok(bytes) = copy.payload.read(at, READ_BYTES) else { return LinkOutput::Failed };
                if !bytes.is_empty() || progress == PayloadProgress::Grows {
                    let at = at + bytes.len() as u64;
                    self.go_to(copy, at, Head::Length);
                    return LinkOutput::Bytes(bytes.into());
                }
                self.end_copy(&copy, is_marked)
            }
        }
    }

    fn go_to(&mut self, copy: Arc<FullCopy>, at: u64, head: Head) {
        self.source = LinkSource::Copy { copy, at, head };
    }

    fn end_copy(&mut self, copy: &FullCopy, is_marked: bool) -> LinkOutput {
        if self.replica.said().wants_copy_only {
            self.source = LinkSource::Done;
            self.replica.keep_from(None);
        } else {
            let start = copy.start.follower().clone();
            self.source = LinkSource::Follows(start);
            // A replica that reads a mark may have read the beginning of the stream with it, and lose that.
            let state = if is_marked { ReplicaState::MustAck } else { ReplicaState::Online };
            self.replica.set_state(state);
        }
        let mark =
            if is_marked { Bytes::copy_from_slice(copy.mark.as_str().as_bytes()) } else { Bytes::new() };
        LinkOutput::Bytes(mark)
    }
}

/// The first command about deadlines of fields among the commands of a piece of the stream.
pub(super) fn unknown_command(piece: &[u8]) -> Option<&'static str> {
    const NAMES: [&str; 2] = ["HPEXPIREAT", "HPERSIST"];
    // Values may have these texts, too. The pieces are read only if there is one.
    if !NAMES.iter().any(|name| memmem::find(piece, name.as_bytes()).is_some()) {
        return None;
    }
    let mut rest = piece;
    while let Some((words, n_bytes)) = read_words(rest) {
        if let Some(name) = NAMES.iter().find(|name| words.first() == Some(&name.as_bytes())) {
            return Some(name);
        }
        rest = &rest[n_bytes..];
    }
    None
}

/// Reads the first command of a piece, in the form in which the stream has it. Returns its length in bytes,
/// too.
fn read_words(piece: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let mut at = 0;
    let number = |lead: u8, at: &mut usize| -> Option<usize> {
        let line = piece.get(*at..)?.strip_prefix(&[lead])?;
        let n_digits = memmem::find(line, b"\r\n")?;
        *at += 1 + n_digits + 2;
        std::str::from_utf8(&line[..n_digits]).ok()?.parse().ok()
    };
    let n_words = number(b'*', &mut at)?;
    let mut words = Vec::new();
    for _ in 0..n_words {
        let n_bytes = number(b'$', &mut at)?;
        words.push(piece.get(at..at + n_bytes)?);
        at += n_bytes + 2;
    }
    Some((words, at))
}

impl Drop for ReplicaLink {
    fn drop(&mut self) {
        self.replica.keep_from(None);
        self.replica.set_state(ReplicaState::Gone);
    }
}

#[cfg(test)]
mod tests {
    use braid_journal::{
        intake::{Kind, Writer},
        stream::ChangeStream,
    };

    use super::*;
    use crate::{
        client::id::ClientId,
        replication::{copy_payload::CopyPayload, full_copy::CopyStart, lineage::ReplicationId},
    };

    fn add(stream: &ChangeStream<()>, writer: &mut Writer, text: &str) {
        stream.add(writer, |to| {
            to.extend_from_slice(text.as_bytes());
            Kind::ForFollowers
        });
        stream.publish(writer);
        let mut held = stream.take();
        while held.merger.merge(stream.intake()) {}
    }

    fn read_all(link: &mut ReplicaLink) -> String {
        let mut text = String::new();
        loop {
            match link.next(Ticket::MAX) {
                LinkOutput::Bytes(bytes) => text.push_str(std::str::from_utf8(&bytes).expect("text")),
                LinkOutput::Later => return text,
                LinkOutput::End => return text + "(end)",
                LinkOutput::Failed => return text + "(failed)",
                LinkOutput::Unknown(name) => return text + name,
            }
        }
    }

    struct Scene {
        stream: ChangeStream<()>,
        writer: Writer,
        copy: Arc<FullCopy>,
    }

    fn scene() -> Scene {
        let (stream, mut writer) = (ChangeStream::new(1, ()), Writer::new(0));
        let cursor = stream.subscribe();
        let mark = stream.add_mark(&mut writer);
        stream.publish(&mut writer);
        add(&stream, &mut writer, "one ");
        let copy = Arc::new(FullCopy {
            replicas: vec![Arc::new(Replica::new(ClientId(7), String::new()))],
            id: ReplicationId::NONE,
            offset: 5,
            mark: ReplicationId::NONE,
            is_marked: true,
            payload: CopyPayload::new(std::path::Path::new("/nowhere")),
            start: CopyStart::at(Follower::at_mark(cursor, mark).expect("it is merged")),
        });
        Scene { stream, writer, copy }
    }

    fn link(client: u64, is_old: bool) -> ReplicaLink {
        ReplicaLink::awaiting_copy(Arc::new(Replica::new(ClientId(client), String::new())), is_old)
    }

    const ZEROS: &str = "0000000000000000000000000000000000000000";

    #[test]
    fn a_marked_copy_is_sent_as_it_grows_and_the_stream_after_the_first_acknowledgement() {
        let Scene { stream, mut writer, copy } = scene();
        let (mut link, mut other) = (link(7, false), link(8, false));
        link.replica.said().takes_marked_end = true;
        assert!(link.may_send_newline());
        link.begin_copy(&copy);
        other.begin_copy(&copy);
        assert_eq!(read_all(&mut other), "", "it is not for this one");
        assert_eq!(read_all(&mut link), format!("+FULLRESYNC {ZEROS} 5\r\n$EOF:{ZEROS}\r\n"));
        copy.payload.append(b"some ").expect("memory");
        assert_eq!(read_all(&mut link), "some ");
        copy.payload.append(b"data").expect("memory");
        copy.payload.end(PayloadProgress::Whole);
        assert!(!link.may_send_newline());
        assert_eq!(read_all(&mut link), format!("data{ZEROS}"));
        assert_eq!(link.replica.state(), ReplicaState::MustAck);
        add(&stream, &mut writer, "two");
        assert_eq!(read_all(&mut link), "");
        link.replica.ack(5, None, 1);
        assert_eq!(read_all(&mut link), "one two");
        let replica = Arc::clone(&link.replica);
        drop(link);
        assert_eq!(replica.state(), ReplicaState::Gone);
    }

    #[test]
    fn a_copy_with_a_length_is_sent_when_it_is_whole_and_the_stream_directly_after_it() {
        for is_old in [false, true] {
            let Scene { copy, .. } = scene();
            let mut link = link(7, is_old);
            link.begin_copy(&copy);
            let reply = if is_old { String::new() } else { format!("+FULLRESYNC {ZEROS} 5\r\n") };
            assert_eq!(read_all(&mut link), reply);
            copy.payload.append(b"data").expect("memory");
            assert!(link.may_send_newline() && read_all(&mut link).is_empty());
            copy.payload.end(PayloadProgress::Whole);
            assert_eq!(read_all(&mut link), "$4\r\ndataone ");
        }
    }

    #[test]
    fn a_client_that_wants_the_copy_only_gets_nothing_else_and_a_failed_copy_ends() {
        let Scene { copy, .. } = scene();
        let mut only = link(7, true);
        only.replica.said().wants_copy_only = true;
        only.begin_copy(&copy);
        copy.payload.append(b"data").expect("memory");
        copy.payload.end(PayloadProgress::Whole);
        assert_eq!(read_all(&mut only), "$4\r\ndata(end)");

        let Scene { copy, .. } = scene();
        let mut failed = link(7, true);
        failed.begin_copy(&copy);
        copy.payload.end(PayloadProgress::Failed);
        assert_eq!(read_all(&mut failed), "(failed)");
    }
}
