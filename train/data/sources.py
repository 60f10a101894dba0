"""The text corpora: which parts of the five files are used, under which licence, and which documents are held out.

A corpus folder holds NAME.txt.bz2 (UTF-8). Each document starts with 0x1e; in a chat 0x02 opens a user turn and 0x03 an
answer. The documents of a source lie together, in the order of SECTIONS. Sources whose licence might follow the text into
the weights (share-alike, GFDL) are not used.
"""
import bz2
import hashlib
import os
import re
from collections import namedtuple

# file, documents, what becomes of them, source, licence
Section = namedtuple("Section", "file count use source licence")
DROP, BOOKS, EDU, DOCS, TALK, WORDS = "", "books", "edu", "docs", "talk", "words"
SECTIONS = (
    Section("books", 66, BOOKS, "100_english_novels, titles up to 1928", "public domain texts"),
    Section("books", 37, BOOKS, "ELTeC-eng, titles up to 1920", "public domain texts, markup CC BY 4.0"),
    Section("books", 311, BOOKS, "African Storybook, the CC BY stories", "CC BY 4.0"),
    Section("edu", 2429, EDU, "OpenStax textbooks, revisions under CC BY 4.0", "CC BY 4.0, (c) OpenStax, Rice University"),
    Section("edu", 510, EDU, "CIA World Factbook", "public domain"),
    Section("chat", 16863, DROP, "schema-guided dialogues", "CC BY-SA 4.0"),
    Section("chat", 3687, TALK, "Taskmaster-4", "CC BY 4.0"),
    Section("chat", 23901, TALK, "self-dialogue corpus", "BSD-3-Clause"),
    Section("chat", 7473, TALK, "GSM8K, training part", "MIT"),
    Section("chat", 48988, DROP, "OpenTriviaQA", "CC BY-SA 4.0"),
    Section("chat", 92428, WORDS, "WordNet 3.0 glosses as questions", "WordNet licence"),
    Section("chat", 10290, DROP, "FOLDOC", "GFDL 1.1"),
    Section("docs", 380, DOCS, "Python manual", "PSF"),
    Section("docs", 980, DOCS, "PostgreSQL manual", "PostgreSQL licence"),
    Section("docs", 253, DOCS, "Django manual", "BSD-3-Clause"),
    Section("docs", 243, DOCS, "Apache HTTP Server manual", "Apache-2.0"),
    Section("docs", 15, DOCS, "BIND manual", "MPL-2.0"),
    Section("docs", 1966, DOCS, "LibreOffice help", "MPL-2.0"),
    Section("docs", 308, DROP, "GNOME manuals", "CC BY-SA 3.0"),
    Section("docs", 110, DOCS, "The Rust book", "MIT or Apache-2.0"),
    Section("docs", 3048, DOCS, "Jargon File, Devil's Dictionary", "public domain"),
    Section("docs", 6642, DOCS, "tldr-pages", "CC BY 4.0"),
    Section("manuals", 5701, DOCS, "manuals of 106 Debian packages, named in data/manuals.py", "MIT, BSD, Apache-2.0 and the like"),
)
# first digits of the texts' hashes: a corpus in another order must not be read by these counts
SHA256 = dict(books="7e5630743ce12a08", chat="c9cef5d6a4d09bb7", docs="18147e6aaabe9402", edu="bab82058bc080cee", manuals="aa286e873c88ebc9")


def held_out(document):
    """0.5 % of the documents, by hash of their text; never trained on"""
    return int.from_bytes(hashlib.md5(document.encode()).digest()[:2], "big") < 328


def held_out_novels(documents):
    """a novel is too big a share to leave to the hash alone: two short ones are held out as well"""
    return set(sorted((d for d in documents if 150_000 < len(d) < 450_000), key=lambda d: hashlib.md5(d.encode()).digest()[:2])[:2])


def documents(corpus, use):
    """-> [(section, document, held out)] of every section of that use"""
    out = []
    for name in dict.fromkeys(s.file for s in SECTIONS if s.use == use):
        with bz2.open(os.path.join(corpus, name + ".txt.bz2")) as f:
            text = f.read()
        if not hashlib.sha256(text).hexdigest().startswith(SHA256[name]):
            raise ValueError(f"{name}.txt.bz2 is another revision than SECTIONS describes")
        docs = text.decode("utf8").split("\x1e")[1:]
        novels = held_out_novels(docs) if name == "books" else ()
        at = 0
        for s in (s for s in SECTIONS if s.file == name):
            if s.use == use:
                out += [(s, d, held_out(d) or d in novels) for d in docs[at:at + s.count]]
            at += s.count
        assert at == len(docs), (name, at, len(docs))
    return out


def turns(document):
    """a chat's messages, or None for plain text"""
    if document[:1] not in "\x02\x03":
        return None
    roles = {"\x02": "user", "\x03": "assistant"}
    return [dict(role=roles[m], content=t) for m, t in re.findall("([\x02\x03])([^\x02\x03]*)", document)]


def transcript(messages):
    """people talking to each other are no model for an assistant: as plain text, speakers by dashes"""
    return "\n".join("- " + m["content"] for m in messages)
