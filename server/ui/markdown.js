// Markdown as language models write it, into elements: paragraphs, headings, lists, quotes, tables, rules, fenced code with
// a button that copies it; code, emphasis and links within lines. Raw HTML stays text. An image is a link to it, for the
// page asks no other server. https://spec.commonmark.org and GitHub's tables are the model; corner cases are not.

// Blocks of a text: {kind, source, ...}. Linear in its length.
function blocksOf(text) {
  const lines = text.split("\n"), blocks = [];
  let at = 0;
  const take = (more) => {
    const from = at;
    do ++at; while (at < lines.length && more(lines[at]));
    return lines.slice(from, at);
  };
  const starts = (line) => /^ {0,3}(#{1,6} |```|~~~|>|([-*_])( *\2){2,} *$)/.test(line) || item(line);
  while (at < lines.length) {
    const line = lines[at];
    let m;
    if (!line.trim()) {
      ++at;
    } else if ((m = /^ {0,3}(`{3,}|~{3,})([^`]*)$/.exec(line))) {
      const fence = m[1], language = m[2].trim().split(/\s+/)[0], body = [];
      let closed = false;
      for (++at; at < lines.length && !closed; ++at) {
        closed = lines[at].trim().startsWith(fence) && !lines[at].trim().replaceAll(fence[0], "");
        if (!closed) body.push(lines[at]);
      }
      blocks.push({ kind: "code", language, text: body.join("\n") });
    } else if ((m = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)? *$/.exec(line))) {
      blocks.push({ kind: "heading", level: m[1].length, text: m[2] });
      ++at;
    } else if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
      blocks.push({ kind: "rule", text: "" });
      ++at;
    } else if (/^ {0,3}>/.test(line)) {
      blocks.push({ kind: "quote", text: take((l) => l.trim() && (/^ {0,3}>/.test(l) || !starts(l))).map((l) => l.replace(/^ {0,3}> ?/, "")).join("\n") });
    } else if (item(line)) {
      blocks.push(list(lines, at));
      at = blocks.at(-1).end;
    } else if (line.includes("|") && at + 1 < lines.length && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1]) && lines[at + 1].includes("|")) {
      blocks.push({ kind: "table", text: take((l) => l.includes("|")).join("\n") });
    } else {
      blocks.push({ kind: "paragraph", text: take((l) => l.trim() && !starts(l)).join("\n") });
    }
  }
  return blocks;
}

// "  - text" or "12. text": its indentation, its number (null for a bullet) and where its text begins.
function item(line) {
  const m = /^(\s*)(?:([-*+])|(\d{1,9})[.)])(?:( {1,4})(?=\S)|\s*$)/.exec(line);
  return m && { indent: m[1].length, number: m[3] === undefined ? null : Number(m[3]), text: m[0].length };
}

// The list at lines[from]: items of one kind, each with the lines that are indented behind it.
function list(lines, from) {
  const first = item(lines[from]), items = [];
  let at = from, loose = false, gap = false;
  while (at < lines.length) {
    const it = item(lines[at]);
    if (!it || it.indent > first.indent + 1 || it.indent < first.indent || (it.number === null) !== (first.number === null)) break;
    loose ||= gap;
    const body = [lines[at].slice(it.text)];
    for (++at; at < lines.length; ++at) {
      const line = lines[at], indent = line.search(/\S/);
      if (indent < 0) {
        const next = lines.slice(at + 1).find((l) => l.trim());
        if (next === undefined || (next.search(/\S/) <= first.indent && !item(next))) break;
        body.push("");
      } else if (indent > first.indent + 1) {
        body.push(line.slice(Math.min(indent, it.text)));
      } else if (item(line) || !body.at(-1) || /^ {0,3}(#{1,6} |```|~~~|>)/.test(line)) {
        break;
      } else {
        body.push(line.trim());  // a line that goes on without indentation
      }
    }
    for (gap = false; body.length > 1 && !body.at(-1); gap = true) body.pop();
    items.push(body.join("\n"));
  }
  return { kind: "list", first: first.number, items, loose, text: lines.slice(from, at).join("\n"), end: at };
}

// One block as an element; `depth` bounds quotes and lists within each other.
function blockElement(block, depth) {
  switch (block.kind) {
    case "code": return codeElement(block);
    case "heading": return inline(make("h" + Math.min(6, block.level + 1), null), block.text);
    case "rule": return make("hr", null);
    case "quote": return fill(make("blockquote", null), block.text, depth + 1);
    case "list": {
      const out = make(block.first === null ? "ul" : "ol", null);
      if (block.first !== null && block.first !== 1) out.start = block.first;
      for (const text of block.items) {
        const li = make("li", out), task = /^\[([ xX])\] /.exec(text);
        if (task) make("input", li, "", { type: "checkbox", checked: task[1] !== " ", disabled: true });
        fill(li, task ? text.slice(4) : text, depth + 1);
        // A tight list has no paragraphs.
        if (!block.loose && li.firstElementChild?.tagName === "P") li.firstElementChild.replaceWith(...li.firstElementChild.childNodes);
      }
      return out;
    }
    case "table": return tableElement(block.text);
    default: return inline(make("p", null), block.text);
  }
}

function fill(parent, text, depth) {
  if (depth > 8) return inline(parent, text);
  for (const block of blocksOf(text)) parent.append(blockElement(block, depth));
  return parent;
}

function codeElement({ language, text }) {
  const box = make("figure", null, "", { className: "code" }), bar = make("figcaption", box, language || "text");
  sign(bar, "Copy", "Copy code", (e) => copy(text, e.currentTarget));
  highlight(make("code", make("pre", box)), text, language);
  return box;
}

// Comments, strings, numbers and the words that most languages share. Long text stays plain.
const kWords = new Set(("and as async await auto bool break case catch char class const constexpr continue def default del delete do double " +
  "elif else enum except export extends extern false finally float fn for from func function if implements import in int interface is " +
  "lambda let long match mod mut namespace new nil none not null of operator or package pass private protected pub public raise return " +
  "self short signed sizeof static struct super switch template this throw true try type typedef typename union unsigned use using var " +
  "virtual void volatile where while with yield True False None select insert update create table join group order by limit echo fi then done").split(" "));
const kHash = /^(py|python|sh|bash|zsh|shell|console|yaml|yml|toml|ruby|rb|perl|r|make|makefile|cmake|dockerfile|conf|ini)$/i;
function highlight(code, text, language) {
  if (text.length > 20000 || !language || /^(text|txt|plain|markdown|md|diff)$/i.test(language)) {
    code.textContent = text;
    return;
  }
  const comment = kHash.test(language) ? "#[^\\n]*" : /^(sql|lua|haskell|hs)$/i.test(language) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?\\*\\/";
  const rule = new RegExp("(" + comment + ")|(\"(?:\\\\.|[^\"\\\\\\n])*\"|'(?:\\\\.|[^'\\\\\\n])*'|`(?:\\\\.|[^`\\\\])*`)|\\b(\\d[\\w.]*)\\b|([A-Za-z_]\\w*)", "g");
  let from = 0;
  for (const m of text.matchAll(rule)) {
    const kind = m[1] !== undefined ? "comment" : m[2] !== undefined ? "string" : m[3] !== undefined ? "number" : kWords.has(m[4]) ? "word" : "";
    if (!kind) continue;
    code.append(text.slice(from, m.index));
    make("i", code, m[0], { className: kind });
    from = m.index + m[0].length;
  }
  code.append(text.slice(from));
}

function tableElement(text) {
  const rows = text.split("\n").map((line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((c) => c.trim().replaceAll("\\|", "|")));
  const align = rows[1].map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : ""));
  const box = make("div", null, "", { className: "table" }), table = make("table", box);
  rows.forEach((cells, n) => {
    if (n === 1) return;
    const tr = make("tr", table);
    rows[0].forEach((_, k) => inline(make(n ? "td" : "th", tr, "", align[k] && { className: align[k] }), cells[k] || ""));
  });
  return box;
}

const kPunctuation = /[!-/:-@[-`{-~]/;

// Text within a line, into `parent`. What opens and never closes is itself.
function inline(parent, text, depth = 0) {
  let plain = "", at = 0;
  const never = new Set();  // what was looked for and is not ahead: the search is made once
  const flush = () => { if (plain) parent.append(plain); plain = ""; };
  const find = (what, from, fits) => {
    if (never.has(what)) return -1;
    for (let k = text.indexOf(what, from); k >= 0; k = text.indexOf(what, k + 1)) if (fits(k)) return k;
    never.add(what);
    return -1;
  };
  while (at < text.length) {
    const c = text[at];
    if (c === "\\" && at + 1 < text.length && kPunctuation.test(text[at + 1])) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    if (c === "`") {
      const run = /^`+/.exec(text.slice(at, at + 32))[0];
      const end = find(run, at + run.length, (k) => text[k - 1] !== "`" && text[k + run.length] !== "`");
      if (end > 0) {
        flush();
        const inner = text.slice(at + run.length, end);
        make("code", parent, /^ .*[^ ].* $/s.test(inner) ? inner.slice(1, -1) : inner);
        at = end + run.length;
      } else {
        plain += run;
        at += run.length;
      }
      continue;
    }
    const mark = depth < 6 && /^(\*{1,3}|_{1,3}|~~)(?=\S)/.exec(text.slice(at, at + 4));
    if (mark && !(c === "_" && /\w/.test(text[at - 1] || ""))) {
      const m = mark[1];
      const end = find(m, at + m.length + 1, (k) => !/\s|\\/.test(text[k - 1]) && text[k + m.length] !== m[0] &&
                                                    !(c === "_" && /\w/.test(text[k + m.length] || "")));
      if (end > 0) {
        flush();
        const outer = make(m === "~~" ? "s" : m.length === 1 ? "em" : "strong", parent);
        inline(m.length === 3 ? make("em", outer) : outer, text.slice(at + m.length, end), depth + 1);
        at = end + m.length;
        continue;
      }
      plain += m;
      at += m.length;
      continue;
    }
    const link = (c === "[" || c === "!") && /^!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*)>?(?:\s+"[^"]*")?\s*\)/.exec(text.slice(at, at + 4096));
    if (link && depth < 6) {
      flush();
      inline(anchor(parent, link[2]), link[1] || link[2], depth + 1);
      at += link[0].length;
      continue;
    }
    const bare = (c === "h" || c === "<") && !/\w/.test(text[at - 1] || "") && /^(<?)(https?:\/\/[^\s<>"'`]+)/.exec(text.slice(at, at + 2048));
    if (bare) {
      flush();
      const url = bare[1] ? bare[2] : bare[2].replace(/[.,;:!?*_)\]]+$/, "");
      anchor(parent, url).append(url);
      at += bare[1].length + url.length + (bare[1] && text[at + 1 + url.length] === ">" ? 1 : 0);
      continue;
    }
    plain += c;
    ++at;
  }
  flush();
  return parent;
}

// A link, where the address is one that a reader may follow; else plain text that shows it.
function anchor(parent, url) {
  if (!/^(https?:|mailto:)/i.test(url)) return make("span", parent, "", { title: url });
  return make("a", parent, "", { href: url, target: "_blank", rel: "noopener noreferrer" });
}

// A text that grows: blocks that did not change keep their elements, so a long answer costs its last block only.
class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.blocks = [];
  }
  set(text) {
    const blocks = blocksOf(text);
    let same = 0;
    const alike = (a, b) => a && a.kind === b.kind && a.text === b.text && a.language === b.language && a.level === b.level;
    while (same < blocks.length && alike(this.blocks[same], blocks[same])) ++same;
    while (this.parent.childNodes.length > same) this.parent.lastChild.remove();
    for (const block of blocks.slice(same)) this.parent.append(blockElement(block, 0));
    this.blocks = blocks;
  }
}
