"""Debian's manuals -> one corpus file: English technical prose whose documentation licence is permissive.

usage: python3 -m train.data.manuals UNPACKED OUT.txt.bz2 [KNOWN.txt.bz2 ...]
UNPACKED holds a folder per package, from   apt-get download PACKAGE; dpkg-deb -x PACKAGE_*.deb UNPACKED/PACKAGE
and                                         dpkg-deb -f PACKAGE_*.deb Version > UNPACKED/PACKAGE/VERSION
OUT: UTF-8; a document is 0x1e, a line of title, then paragraphs between blank lines, code indented by four spaces.
Documents of a source lie together, in the order of SOURCES. Prints a line per source: documents, name, licence, bytes.
Left out: pages that are mostly code, signatures or lists, paragraphs that many pages share, and documents of which a third
stands in an earlier one or in the KNOWN files.
"""
import bz2
import os
import re
import sys
from collections import Counter, namedtuple
from multiprocessing import Pool

from lxml import etree, html

CAP = 2_500_000                                          # characters of one source; what reads least like prose goes first
LONG = 80                                                # a paragraph that identifies its text

# package, licence of the documentation, folder under usr/share (- is doc/PACKAGE/html), pages: only / not these (or -)
TABLE = r"""
python-pandas-doc BSD-3-Clause - ^(user_guide|getting_started|development|reference/api)/ -
python-scipy-doc BSD-3-Clause - - -
python-sklearn-doc BSD-3-Clause - - -
python-skimage-doc BSD-3-Clause - - -
python-statsmodels-doc BSD-3-Clause - - generated/
python-sympy-doc BSD-3-Clause - - -
python-mpmath-doc BSD-3-Clause - - -
python-astropy-doc BSD-3-Clause - - ^api/
python-dask-doc BSD-3-Clause - - generated/
python-distributed-doc BSD-3-Clause - - -
python-xarray-doc Apache-2.0 - - -
python-h5py-doc BSD-3-Clause - - -
python-tables-doc BSD-3-Clause - - -
python-nibabel-doc MIT - - -
python-lmfit-doc MIT doc/python3-lmfit/html - -
python-fluids-doc MIT - - -
python-astroquery-doc BSD-3-Clause - - ^api/
python-ezdxf-doc MIT - - -
python-ipython-doc BSD-3-Clause - - -
python-ipyparallel-doc BSD-3-Clause - - -
python-sqlalchemy-doc MIT - - -
python-peewee-doc MIT - - -
python-pymongo-doc Apache-2.0 - - -
python-mongoengine-doc MIT - - -
python-flask-doc BSD-3-Clause - - -
python-werkzeug-doc BSD-3-Clause - - -
python-jinja2-doc BSD-3-Clause - - -
python-click-doc BSD-3-Clause - - -
python-bottle-doc MIT - - -
python-tornado-doc Apache-2.0 - - -
python-aiohttp-doc Apache-2.0 - - -
python-gevent-doc MIT - - -
python-djangorestframework-doc BSD-2-Clause doc/python3-djangorestframework/html - community/
python-django-channels-doc BSD-3-Clause - - -
python-django-haystack-doc BSD-3-Clause - - -
python-scrapy-doc BSD-3-Clause - - -
python-pytest-doc MIT - - -
python-hypothesis-doc MPL-2.0 - - -
python-coverage-doc Apache-2.0 - - -
python-cryptography-doc Apache-2.0_or_BSD-3-Clause - - -
python-cffi-doc MIT - - -
cython-doc Apache-2.0 - - -
mypy-doc MIT doc/mypy/html - -
python-setuptools-doc MIT - - -
python-structlog-doc Apache-2.0_or_MIT - - -
python-typer-doc MIT - - -
python-nox-doc Apache-2.0 - - -
python-sortedcontainers-doc Apache-2.0 - - -
python-lark-doc MIT - - -
python-pyparsing-doc MIT - - -
python-pygments-doc BSD-2-Clause - - -
python-pil-doc HPND - - -
python-markdown-doc BSD-3-Clause doc/python-markdown-doc/docs - -
python-psutil-doc BSD-3-Clause - - -
python-guizero-doc BSD-3-Clause - - -
wand-doc MIT - - -
docutils-doc public_domain doc/docutils-doc/docs - -
sphinx-doc BSD-2-Clause - - -
mkdocs-doc BSD-2-Clause doc/mkdocs/html - -
beets-doc MIT doc/beets/html - -
snakemake-doc MIT doc/snakemake/html - -
scons-doc MIT doc/scons/HTML - -
borgbackup-doc BSD-3-Clause doc/borgbackup/html - -
renpy-doc MIT doc/renpy/html - -
firmware-microbit-micropython-doc MIT doc/firmware-microbit-micropython/html - -
twisted-doc MIT - - ^api/
rust-doc MIT_or_Apache-2.0 - ^(reference|nomicon|rustc|rustdoc|edition-guide|rust-by-example|unstable-book|error-index|std)\b std/(intrinsics|arch|simd|os)/
nodejs-doc MIT doc/nodejs/api - all\.html
erlang-doc Apache-2.0 doc/erlang-doc - /java/|notes\.html
llvm-19-doc Apache-2.0_with_LLVM_exception - - ^AMDGPU/|ReportingGuide|ResponseGuide
clang-19-doc Apache-2.0_with_LLVM_exception doc/clang-19/html - DiagnosticsReference
cmake-doc BSD-3-Clause doc/cmake-data/html - ^(variable|prop_\w+|envvar)/
ghc-doc BSD-3-Clause - users_guide|haddock -
nim-doc MIT doc/nim/html - -
swi-prolog-doc BSD-2-Clause swi-prolog/doc - examples/
chezscheme-doc Apache-2.0 - - -
sbcl-doc public_domain doc/sbcl - -
golang-1.19-doc BSD-3-Clause - - 1.17
libboost1.81-doc BSL-1.0 doc/libboost1.81-doc - html/boost/|/reference/|doxygen
libeigen3-doc MPL-2.0 doc/libeigen3-dev/html - class|struct|group__.*__Module|search/
opencv-doc Apache-2.0 doc/opencv-doc/opencv4/html tutorial_ search/
libsdl2-doc zlib - - -
libglfw3-doc zlib doc/libglfw3-dev/html - search/
freetype2-doc FreeType_licence doc/libfreetype-dev - -
geographiclib-doc MIT doc/geographiclib/html - search/|class
dpdk-doc BSD-3-Clause doc/dpdk/guides - rel_notes|^(nics|cryptodevs|compressdevs|bbdevs)/
petsc3.18-doc BSD-2-Clause doc/petsc3.18-doc/docs/docs - manualpages/|src/|include/
zsh-doc zsh_licence_(MIT-like) doc/zsh-common/html - -
sqlite3-doc public_domain doc/sqlite3 - releaselog|session/
libhsqldb-java-doc BSD-3-Clause doc/libhsqldb-java/guide - -
imagemagick-6-doc ImageMagick_licence_(Apache-2.0) doc/imagemagick-6-common/html - api/
ant-doc Apache-2.0 doc/ant/manual - -
tomcat10-docs Apache-2.0 tomcat10-docs/docs - api/
libapache2-mod-perl2-doc Apache-2.0 doc/libapache2-mod-perl2-doc - -
varnish-doc BSD-2-Clause doc/varnish/html - -
kea-doc MPL-2.0 doc/kea/html - -
ntpsec-doc NTP_licence_(MIT-like) - - hacking
openvswitch-doc Apache-2.0 - - -
ovn-doc Apache-2.0 - - -
nova-doc Apache-2.0,_footer_CC_BY_3.0 - - configuration/|sample
neutron-doc Apache-2.0,_footer_CC_BY_3.0 - - configuration/|sample
cinder-doc Apache-2.0,_footer_CC_BY_3.0 - - contributor/api|configuration/|sample
keystone-doc Apache-2.0,_footer_CC_BY_3.0 - - ^api/|configuration/|sample
glance-doc Apache-2.0,_footer_CC_BY_3.0 - - contributor/api|configuration/|sample
ironic-doc Apache-2.0,_footer_CC_BY_3.0 - - contributor/api|configuration/|sample
swift-doc Apache-2.0 doc/swift-doc - -
"""
Source = namedtuple("Source", "package licence folder only without")
SOURCES = [Source(*(("" if f == "-" else f) for f in line.split())) for line in TABLE.strip().splitlines()]

WITHOUT = re.compile(r"(^|/)(_|\.)|(^|/)(gen|mod|py-mod|full)?index[^/]*-[^/]*\.html$|(^|/)(genindex|search|py-modindex|glossary-index)|"
                     r"change[sl_-]|changelog|(^|/)changes|release|whats_?new|news\.html|announce|relnotes|licen[sc]e|copying|"
                     r"authors|acknowledg|contributors\.html|credits|code_?of_?conduct|javadoc|/contents\.html|print\.html|404|"
                     r"bibliography|(^|/)toc\.html|translat", re.I)
REFERENCE = re.compile(r"/(generated|c3ref|std|prop_\w+|variable|module|reference/api|refs)/|/wx\w+\.html")  # a page per name: prose only
MAIN = [etree.XPath(p) for p in (
    "//*[@itemprop='articleBody']", "//div[@class='docs-body']", "//*[@role='main' and not(self::body)]", "//main", "//article",
    "//div[@class='body' or @class='bodywrapper']", "//div[@class='contents']",
    "//*[@id='apicontent']", "//*[@id='main-content']", "//*[@id='content']", "//body")]
DROP_TAGS = set("script style nav footer svg form button noscript iframe audio video object input select textarea head".split())
DROP_CLASSES = re.compile(
    r"(?<![\w-])(headerlink|viewcode-link|viewcode-block|toctree-wrapper|toctree-l\d|linenos|linenodiv|related|sphinxsidebar\w*|"
    r"sphx-glr-(footer|download|thumb|timing|signature|script-out|horizontal|animation)[\w-]*|sphx_glr_[\w-]*|navheader|navfooter|"
    r"toc|TOC|spirit-nav|localtoc|autosummary|memberdecls|memproto|breadcrumbs?|rst-footer-buttons|prev-next-\w+|copyright-footer|"
    r"logo|banner|versionadded-old|topic contents|contents topic|contents local|admonition-seealso-nav|line-numbers?|headerNavigation|"
    r"footer|sidebar|menu|navigation|navbar|skip-to-content|docs-sidebar|srclink|src|out-of-band|rightside|search|"
    r"code-attribute|method-toggle-hidden|navpath|header-nav|api_metadata|stability-link|mark|sourcelink|nb-prompt|prompt|item-decl|"
    r"since|fqn|test-arrow|hideme|fancy_toc|imgcontainer|tagline|mainmenu|submenu|searchmenu|topbar|docs-byline|"
    r"erlang-logo-wrapper|leftnav|"
    r"binder-badge|dataframe|system-message|problematic|sd-sphinx-override-link|docs-book-wrapper-nav)(?![\w-])")
DROP_IDS = re.compile(r"(trait|synthetic|blanket)-implementations(-list)?|implementors(-list)?|toc|TOC|column2|leftnav|"
                      r"topbar|footer|nav(bar|igation)?|table-of-contents|searchbox|sidebar\w*|implemented-types|related-topics")
BLOCKS = set("p div section article main body ul ol dl dt dd li table tbody thead tr td th blockquote pre h1 h2 h3 h4 h5 h6 center "
             "figure figcaption details summary hr header aside fieldset address caption".split())
FOLD = {ord(a): b for a, b in (
    *zip("\u2018\u2019\u201a\u2032\u201c\u201d\u201e\u2033\u2013\u2014\u2015\u2010\u2011\u2012\u2212\u00a0\u202f\u2009\u2002\u2003", "''''\"\"\"\"-------     "),
    ("\u2026", "..."), ("\u00ad", ""), ("\u200b", ""), ("\u200c", ""), ("\u200d", ""), ("\u2060", ""), ("\ufeff", ""), ("\u2022", "-"), ("\u00b6", ""),
    ("\uf0c1", ""), ("\ufb01", "fi"), ("\ufb02", "fl"), ("\u2028", "\n"), ("\u2029", "\n"), ("\r", ""), ("\t", "    "), ("\x85", "..."),
    ("\u2190", "<-"), ("\u2192", "->"), ("\u21d2", "=>"), ("\u2264", "<="), ("\u2265", ">="), ("\u00d7", "x"))}
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")


JUNK = re.compile(r"\[(source|edit)\]$|(Prev|Next) Tutorial: |(Previous|Next|Up|Home|Table of Contents|On this page|Go to the end|Note)$|"
                  r"Copyright|Last updated|Click here to download|See also:$|Example(s)?:?$|\$Revision|from (Alice's Adv|Pogo)|Try it in your browser|"
                  r"View page source|See also lists of Objects|Home Page \| Site Map|image$")


def contents(node):
    """a list of little but links: navigation"""
    whole = len(re.sub(r"\s+", " ", node.text_content()))
    inside, links = (sum(len(a.text_content().strip()) + 4 for a in node.xpath(p)) for p in (".//a[starts-with(@href, '#')]", ".//a"))
    return len(node) > 1 and inside >= whole or len(node) > 3 and links >= whole


class Page:
    """walks the tree and collects (kind, text): h heading, p paragraph, c code, s signature or table row"""

    def __init__(self):
        self.parts, self.line, self.prefix = [], [], ""

    def flush(self, kind="p"):
        text = re.sub(r"\s+", " ", CONTROL.sub("", "".join(self.line).translate(FOLD).replace("\n", " "))).strip()
        self.line = []
        if text.strip("|-# ") and not JUNK.match(text):
            self.parts.append((kind, self.prefix + text))
            self.prefix = ""

    def code(self, node):
        rows = [d.text_content() for d in node.xpath(".//div[contains(@class, 'line')][not(.//div)]")] if node.tag == "div" else []
        text = CONTROL.sub("", ("\n".join(rows) or node.text_content()).translate(FOLD))
        rows = [r.rstrip() for r in text.strip("\n").split("\n")]
        depth = min((len(r) - len(r.lstrip()) for r in rows if r), default=0)
        if any(rows) and len(rows) <= 60 and max(map(len, rows)) < 200:
            self.parts.append(("c", "\n".join("    " + r[depth:] if r else "" for r in rows)))
        self.prefix = ""

    def table(self, node):
        if "highlighttable" in node.get("class", "") or node.find_class("linenos"):
            return [self.code(p) for p in node.iter("pre") if not p.getparent().get("class", "").count("linenos")]
        if node.xpath(".//table|.//pre|.//ul|.//dl|.//h2|.//h3|.//td/p[2]"):
            return self.children(node)                   # used for layout
        rows = [[re.sub(r"\s+", " ", c.text_content()).strip() for c in tr if c.tag in ("td", "th")] for tr in node.iter("tr")]
        if rows and len(rows) <= 60 and max(map(len, rows)) <= 5:
            text = "\n".join(" | ".join(c for c in row) for row in rows if any(row))
            text = CONTROL.sub("", text.translate(FOLD)).strip()
            if text:
                self.parts.append(("s", text))

    def children(self, node):
        self.line.append(node.text or "")
        for child in node:
            self.walk(child)
            self.line.append(child.tail or "")

    def walk(self, node):
        tag, classes = node.tag, node.get("class", "") if isinstance(node.tag, str) else ""
        if not isinstance(tag, str) or tag in DROP_TAGS or DROP_CLASSES.search(classes) or DROP_IDS.fullmatch(node.get("id", "")):
            return
        if tag == "img":
            if "math" in classes or "/math/" in node.get("src", ""):
                self.line.append(node.get("alt", ""))
            return
        if tag == "br":
            self.line.append(" ")
        elif classes == "classifier":
            self.line.append(" : ")
            self.children(node)
        elif tag == "a" and node.text_content().strip() in ("#", "\u00b6", "\u00a7", "[source]", "[src]"):
            return
        elif tag not in BLOCKS:
            self.children(node)
        else:
            self.flush()
            if tag == "pre" or "fragment" in classes.split():
                self.code(node)
            elif tag == "table":
                self.table(node)
            elif tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
                self.children(node)
                self.flush("h")
            elif tag == "dt":
                self.children(node)
                self.flush("s" if "sig" in classes else "p")
            elif tag in ("ul", "ol") and contents(node):
                return
            elif tag == "li":
                self.prefix = "- "
                self.children(node)
            elif "admonition-title" in classes:
                self.children(node)
                self.prefix = re.sub(r"\s+", " ", "".join(self.line)).strip().rstrip(":") + ": "
                self.line = []
            else:
                self.children(node)
            self.flush()


def sentences(kind, text):
    """how much of a paragraph is prose"""
    return len(text) if kind == "p" and len(text) > 60 and text.count(" ") > 8 and re.search(r"[.:?!)]['\"]?$", text) else 0


def title(tree, main):
    """of the page: its first heading, else what <title> says"""
    top = tree.xpath("//div[@class='headertitle']/div[@class='title']|//h1[@class='title']") or main.xpath(".//h1")
    page = Page()
    if tree.xpath("//body[contains(@class, 'rustdoc')]"):
        top = []
    if top:
        page.children(top[0])
        page.flush()
    if page.parts:
        top = page.parts[0][1].strip(" #")
        if not re.match(r"Apache Tomcat|Application Developer's Guide|NAME$|1\. |<no title>", top):
            return top
    comments = "".join(c.text for c in tree.xpath("//comment()"))
    text = tree.findtext(".//title") or "".join(re.findall(r'"Title": "(.+)"', comments))
    text = re.sub(r"\s+", " ", CONTROL.sub("", text.translate(FOLD).replace("\n", " "))).strip()
    text = re.sub(r"^(<no title>.*|SWI-Prolog .*Section [\w.]+$|Apache Tomcat[^-]*- |OpenCV: |Eigen: |GLFW: |Erlang -- )", "", text)
    return re.split(r" [-|] | - Rust$", text)[0].strip(" #")


def document(path):
    """-> (share of prose, [title, paragraphs]) or None"""
    with open(path, "rb") as f:
        data = f.read()
    if len(data) > 4_000_000:
        return None
    try:
        text = data.decode("utf8")
    except UnicodeDecodeError:
        text = data.decode("latin1")
    try:
        tree = html.document_fromstring(re.sub(r"^\s*<\?xml[^>]*>", "", text))
    except (etree.ParserError, ValueError):
        return None
    main = next((m for find in MAIN for m in find(tree)[:1]), None)
    if main is None:
        return None
    page = Page()
    page.children(main)
    page.flush()
    parts = page.parts
    name = title(tree, main) or next((t for k, t in parts[:3] if k == "h" or len(t) < 80), "")
    at = next((i for i, p in enumerate(parts[:8]) if p[1].strip(" #") == name), -1)
    parts = parts[at + 1:] if at < 4 else parts
    while parts and parts[-1][0] == "h":
        parts.pop()
    parts = [p for i, p in enumerate(parts) if not (p[0] == "h" and parts[i + 1][0] == "h" and len(p[1]) > 100)]
    total = sum(len(t) for _, t in parts) or 1
    prose = sum(sentences(*p) for p in parts)
    share = prose / total
    if not name or prose < 300 or share < (0.7 if REFERENCE.search(path) else 0.54):
        return None
    whole = "\n\n".join(t for _, t in parts)
    if sum(ord(c) > 127 for c in whole) > 0.05 * len(whole):
        return None
    if len(re.findall(r"\b(the|of|to|is|and|a|in)\b", whole)) < len(whole) / 120:
        return None                                      # not English, or not sentences
    return share, [name, *(q for q in re.split(r"\n\n+", whole) if q.strip() and "<|" not in q and "<\uff5c" not in q)]


def pages(unpacked, source):
    root = os.path.join(unpacked, source.package, "usr/share", source.folder or f"doc/{source.package}/html")
    found = []
    for folder, _, files in os.walk(root):
        found += [os.path.relpath(os.path.join(folder, f), root) for f in files if f.endswith((".html", ".htm"))]
    if not found:
        raise FileNotFoundError(root)
    return [os.path.join(root, p) for p in sorted(found) if re.search(source.only, p) and not WITHOUT.search(p)
            and not (source.without and re.search(source.without, p))]


def main(unpacked, out, *known_files):
    known = set()
    for name in known_files:
        with bz2.open(name, "rt", encoding="utf8") as f:
            known |= {hash(p.strip()) for p in re.split("\n\n+|\x1e", f.read()) if len(p) > LONG}
    with Pool() as pool:
        collected = [pool.map(document, pages(unpacked, s), 8) for s in SOURCES]
    texts = []
    for found in collected:
        fresh = []
        for i in sorted((i for i, d in enumerate(found) if d), key=lambda i: (sum(map(len, found[i][1])), i)):
            long = {hash(p.strip()) for p in found[i][1][1:] if len(p) > LONG}
            if len(long & known) <= 0.3 * len(long) and long:
                fresh.append(i)                          # small ones first: a book on one page repeats its chapters
                known |= long
        kept, size = [], 0
        for i in sorted(fresh, key=lambda i: (-found[i][0], i)):
            if size < CAP:
                kept.append(i)
                size += sum(map(len, found[i][1]))
        texts.append([found[i][1] for i in sorted(kept)])
    often = Counter(p for docs in texts for d in docs for p in d[1:] if len(p) > LONG)
    packed = bz2.BZ2Compressor()
    with open(out, "wb") as f:
        for source, docs in zip(SOURCES, texts):
            docs = ["\n\n".join([d[0], *(p for p in d[1:] if often[p] <= 3)]) for d in docs]
            docs = ["\x1e" + d.rstrip() for d in docs if len(d) >= 400]
            data = "".join(docs).encode("utf8")
            f.write(packed.compress(data))
            with open(os.path.join(unpacked, source.package, "VERSION")) as v:
                print(f"{len(docs):6,} | Debian {source.package} {v.read().strip()} | {source.licence.replace('_', ' ')} | {len(data):,}", flush=True)
        f.write(packed.flush())


if __name__ == "__main__":
    main(*sys.argv[1:])
