//! The English of documents and comments: short sentences, and nouns rather than clauses that stand for them.
//!
//! Each Markdown document is measured on its own, and the comments of each crate together. A rule here counts
//! words and cannot read, so it misses some faults and rarely reports a correct text. It sets a minimum for
//! all texts.

use super::{
    Exceptions, excepting, none,
    source::{Source, crates, lines, texts},
};

/// The longest sentence that is easy to read, in words.
const SENTENCE_WORDS: usize = 25;

/// The share of longer sentences that a text may have, in percent.
const LONG_PERCENT: usize = 10;

/// Clauses such as "what is due" or "who waits" used as nouns that a text may have in 1000 words.
const CLAUSES_PER_1000: usize = 4;

/// The two laws, by the names that `EXEMPT` uses.
const LENGTH: &str = "long sentences";
const CLAUSES: &str = "clauses as nouns";

/// The texts that do not obey yet. The list only shrinks: a text that obeys must leave it.
const EXEMPT: Exceptions = &[];

/// The measures of a text.
#[derive(Debug, Default)]
struct Measured {
    n_words: usize,
    n_sentences: usize,
    long: Vec<String>,
    clauses: Vec<String>,
}

impl Measured {
    fn of(prose: &[String]) -> Self {
        let mut measured = Self::default();
        for sentence in prose.iter().flat_map(|paragraph| sentences(paragraph)) {
            let words = words(&sentence);
            // A label or a number is no sentence.
            if words.len() < 3 {
                continue;
            }
            measured.n_sentences += 1;
            measured.n_words += words.len();
            if words.len() > SENTENCE_WORDS {
                measured.long.push(sentence.clone());
            }
            measured.clauses.extend((0..clauses(&sentence)).map(|_| sentence.clone()));
        }
        measured
    }

    /// Returns one line for each law that the text breaks: the law, and the finding.
    fn findings(&self, path: &str) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        let examples =
            |of: &[String]| of.iter().take(3).map(|text| format!("\n    {text}")).collect::<String>();
        let (n_long, n_clauses) = (self.long.len(), self.clauses.len());
        if n_long * 100 > LONG_PERCENT * self.n_sentences {
            let text = format!(
                "{path}: {n_long} of {} sentences have more than {SENTENCE_WORDS} words (at most {LONG_PERCENT} %), such as{}",
                self.n_sentences,
                examples(&self.long)
            );
            found.push((path.to_owned(), LENGTH.to_owned(), text));
        }
        if n_clauses * 1000 > CLAUSES_PER_1000 * self.n_words {
            let text = format!(
                "{path}: {n_clauses} clauses stand for nouns in {} words (at most {CLAUSES_PER_1000} in 1000), such as{}",
                self.n_words,
                examples(&self.clauses)
            );
            found.push((path.to_owned(), CLAUSES.to_owned(), text));
        }
        found
    }
}

/// Returns the paragraphs of a Markdown text, without code, tables, headings and quotations. A code span
/// counts as one word.
fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_code = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let is_item = ["- ", "* ", "> "].iter().any(|mark| line.starts_with(mark))
            || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        let is_other = is_code
            || ["```", "|", "#", "<", "["].iter().any(|mark| line.starts_with(mark)) && !is_link(line);
        if line.is_empty() || is_item || is_other {
            paragraphs.push(String::new());
        }
        if !is_other {
            let paragraph = paragraphs.last_mut().expect("there is one");
            paragraph.push_str(line.trim_start_matches(['-', '*', '>']));
            paragraph.push(' ');
        }
    }
    let plain = paragraphs.iter().map(|paragraph| without_spans(paragraph));
    plain
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|text| !text.is_empty())
        .collect()
}

/// Whether a line begins with a link, which is part of a sentence, and not with the target of one.
fn is_link(line: &str) -> bool {
    line.starts_with('[') && !line.contains("]: ")
}

/// Replaces code spans and quotations with one word each, and links with their text.
fn without_spans(paragraph: &str) -> String {
    let mut plain = String::new();
    for (n, part) in paragraph.split('`').enumerate() {
        plain.push_str(if n % 2 == 0 { part } else { "code" });
    }
    let mut text = String::new();
    for (n, part) in plain.split('"').enumerate() {
        text.push_str(if n % 2 == 0 { part } else { "quoted" });
    }
    let mut rest = text.as_str();
    let mut linked = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        linked.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    linked.push_str(rest);
    linked.replace(['[', ']', '*', '_'], "")
}

/// Cuts a paragraph after each full stop, question mark or exclamation mark that ends a word.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    for word in paragraph.split_whitespace() {
        let sentence = sentences.last_mut().expect("there is one");
        sentence.push_str(word);
        sentence.push(' ');
        let end = word.trim_end_matches([')', '\'', '’', '”']);
        if end.ends_with(['.', '?', '!']) && !["e.g.", "i.e.", "etc."].contains(&end) {
            sentences.push(String::new());
        }
    }
    sentences
        .into_iter()
        .map(|sentence| sentence.trim_end().to_owned())
        .filter(|text| !text.is_empty())
        .collect()
}

/// Returns the tokens that have a letter or a digit.
fn words(sentence: &str) -> Vec<&str> {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).collect()
}

/// Words after which "who" cannot refer to a noun.
const NO_NOUNS: &[&str] = &[
    "about",
    "after",
    "among",
    "and",
    "as",
    "ask",
    "asks",
    "at",
    "before",
    "behind",
    "but",
    "by",
    "decide",
    "decides",
    "find",
    "finds",
    "for",
    "from",
    "has",
    "hear",
    "hears",
    "in",
    "is",
    "know",
    "known",
    "knows",
    "look",
    "looks",
    "name",
    "names",
    "of",
    "on",
    "or",
    "remember",
    "remembers",
    "say",
    "says",
    "see",
    "sees",
    "show",
    "shows",
    "tell",
    "tells",
    "than",
    "that",
    "to",
    "told",
    "was",
    "which",
    "with",
];

/// Returns how many clauses of a sentence stand for a noun. A clause with "what" or "whoever" always does,
/// unless the sentence is a question.
fn clauses(sentence: &str) -> usize {
    if sentence.ends_with('?') {
        return 0;
    }
    let words = words(sentence);
    let is_clause = |at: usize| {
        let bare = |at: usize| words[at].trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase();
        match bare(at).as_str() {
            "what" | "whoever" => true,
            "who" | "whom" => {
                at == 0
                    || words[at - 1].ends_with([',', ':', ';', '('])
                    || NO_NOUNS.contains(&bare(at - 1).as_str())
            }
            _ => false,
        }
    };
    (0..words.len()).filter(|&at| is_clause(at)).count()
}

/// Returns the comments of a file, as text. Comments on consecutive lines are one paragraph.
fn comments(source: &Source) -> String {
    let mut text = String::new();
    let mut was_code = false;
    for line in &source.lines {
        let comment = line.comment.trim_start_matches(['/', '!']).trim();
        // A comment after code is separate from those above and below it.
        let is_code = !line.code.trim().is_empty();
        text.push_str(if comment.is_empty() || is_code || was_code { "\n\n" } else { "\n" });
        text.push_str(comment);
        was_code = is_code;
    }
    text
}

/// Measures every text under the laws, by its path or by the name of its crate.
fn measured() -> Vec<(String, Measured)> {
    let texts = texts();
    let documents = texts.iter().filter(|(path, _)| path.ends_with(".md"));
    let mut all: Vec<(String, Measured)> =
        documents.map(|(path, text)| (path.clone(), Measured::of(&paragraphs(text)))).collect();
    for krate in crates() {
        let folder = format!("{krate}/");
        let of_crate = texts.iter().filter(|(path, _)| path.starts_with(&folder) && path.ends_with(".rs"));
        let prose: Vec<String> = of_crate
            .flat_map(|(path, text)| {
                paragraphs(&comments(&Source { path: path.clone(), lines: lines(text) }))
            })
            .collect();
        all.push((format!("comments of {krate}"), Measured::of(&prose)));
    }
    all
}

#[test]
fn sentences_are_short_and_nouns_are_nouns() {
    let all = measured();
    assert!(
        all.iter().filter(|(_, measured)| measured.n_sentences > 20).count() > 10,
        "the search has missed the texts"
    );
    for (path, measured) in &all {
        let (n_long, n_clauses) = (measured.long.len(), measured.clauses.len());
        println!(
            "{path}: {n_long} of {} sentences are long ({:.1} %); {:.1} clauses for nouns in 1000 words",
            measured.n_sentences,
            100.0 * n_long as f64 / measured.n_sentences.max(1) as f64,
            1000.0 * n_clauses as f64 / measured.n_words.max(1) as f64,
        );
    }
    let found = all.iter().flat_map(|(path, measured)| measured.findings(path)).collect();
    none(
        "English that needs no second reading (`--nocapture` prints all measures):",
        excepting(EXEMPT, found),
    );
}

/// The search itself: one that finds nothing would enforce nothing.
mod search {
    use super::*;

    #[test]
    fn prose_is_taken_out_of_its_markup() {
        let text = "# What is left out\n\nOne `code of many words`\nand [a link](https://x.y/z. w).\n- An item\n- \"What a\" quote\n\n\
                    ```\nwhat code\n```\n| what | a table |\n";
        assert_eq!(paragraphs(text), ["One code and a link.", "An item", "quoted quote"]);
    }

    #[test]
    fn sentences_end_where_they_end() {
        let text = "It takes 2.5 µs (more than `a.b`). Does it? Yes, e.g. here.";
        assert_eq!(sentences(text).len(), 3);
    }

    #[test]
    fn clauses_that_stand_for_nouns_are_counted() {
        let counts = |text: &str| clauses(text);
        assert_eq!(counts("It frees what is due."), 1);
        assert_eq!(counts("Whoever waits is told who holds it, and by whom."), 3);
        assert_eq!(counts("A client who waits is told."), 0);
        assert_eq!(counts("What is it?"), 0);
    }

    #[test]
    fn each_law_finds_its_breach() {
        let long = ["word"; 26].join(" ");
        let found = Measured::of(&[format!("{long}. It takes what it needs.")]).findings("x.md");
        let laws: Vec<&str> = found.iter().map(|(_, law, _)| law.as_str()).collect();
        assert_eq!(laws, [LENGTH, CLAUSES]);
        assert!(Measured::of(&["It takes all that it needs.".to_owned()]).findings("x.md").is_empty());
    }

    #[test]
    fn comments_are_read_as_text() {
        let text = "//! A page\n//! of text.\n\nfn f() {} // Beside code.\n/// Its doc.\n";
        let source = Source { path: "x.rs".to_owned(), lines: lines(text) };
        assert_eq!(paragraphs(&comments(&source)), ["A page of text.", "Beside code.", "Its doc."]);
    }
}
