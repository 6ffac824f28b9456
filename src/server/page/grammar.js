// Configures marked for answers, inside the worker. It adds formulas and footnotes to Markdown. HTML is shown as text,
// images become links, and a link that leads to this server is text, because a GET can change the server's state.
import './lib/marked.js';
import {highlighted} from './highlighter.js';

const {marked, Lexer, Parser} = self.marked;

const MAX_INLINE = 32768;  // a longer paragraph is shown as it is, because the time for emphasis may be quadratic
const MAX_FORMULA = 8192;
const PAIRS = [['\\(', '\\)', false], ['\\[', '\\]', true], ['$$', '$$', true]];  // opening, closing, on its own line
const DOLLARS = /^\$(?![\s$])((?:\\.|[^$\\\n])*?(?:\\.|[^\s$\\]))\$(?!\d)/;
const MONEY = /^\d[\d.,]*[kKmMbB]?\s+[A-Za-z]{2}/;  // "$5 per month, or 50$" is not a formula
const NOTE = /^\[\^([^\]\s]{1,40})\]:[ \t]*([^\n]*(?:\n(?![ \t]*(?:\n|\[\^))[^\n]+)*)(?:\n|$)/;
const NOTE_MARK = /^\[\^([^\]\s]{1,40})\](?!:)/;

let growing = false;  // more text will follow, so a formula without an end may still be arriving

export const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

// Returns the text up to its first blank line, which no formula goes beyond.
function firstPart(text) {
  const end = text.search(/\n[ \t]*\n/);
  return end < 0 ? text : text.slice(0, end + 1);
}

// Reads a formula at the beginning of the text. If `whole` is set, nothing may follow on its last line.
function formula(src, type, whole) {
  for (const [open, close, display] of PAIRS) {
    if (!src.startsWith(open)) continue;
    const part = firstPart(src);
    const end = part.indexOf(close, open.length);
    if (end > open.length && end < MAX_FORMULA) {
      const raw = src.slice(0, end + close.length);
      const rest = /^[ \t]*(\n|$)/.exec(src.slice(raw.length));
      if (!whole || rest) return {type, raw: whole ? raw + rest[0] : raw, source: raw, display};
      return undefined;
    }
    if (end < 0 && growing && part.length === src.length) return {type, raw: part, text: part};
    return undefined;
  }
  if (whole || src[0] !== '$') return undefined;
  const found = DOLLARS.exec(src.slice(0, MAX_FORMULA));
  if (found) return MONEY.test(found[1]) ? undefined : {type, raw: found[0], source: found[0], display: false};
  const half = growing && /^\$[^\s\d$][^$\n]*$/.test(src);
  return half ? {type, raw: src, text: src} : undefined;
}

function showFormula({source, display, text}) {
  if (text !== undefined) return escaped(text);
  return `<span class="formula${display ? ' display' : ''}">${escaped(source)}</span>`;
}

const formulaBlock = {
  name: 'formulaBlock',
  level: 'block',
  start: (src) => {
    const at = firstPart(src).search(/\n {0,3}(?:\$\$|\\\[)/);
    return at < 0 ? undefined : at + 1;
  },
  tokenizer: (src) => {
    const indent = /^ {0,3}/.exec(src)[0];
    const token = /^(?:\$\$|\\\[)/.test(src.slice(indent.length, indent.length + 2)) &&
      formula(src.slice(indent.length), 'formulaBlock', true);
    return token ? {...token, raw: indent + token.raw} : undefined;
  },
  renderer: (token) => `<p>${showFormula(token)}</p>`,
};

const formulaInline = {
  name: 'formula',
  level: 'inline',
  start: (src) => {
    const at = src.search(/\\[([]|(?<![\w$\\])\$/);
    return at < 0 ? undefined : at;
  },
  tokenizer: (src) => (src[0] === '$' || src[0] === '\\' ? formula(src, 'formula', false) : undefined),
  renderer: showFormula,
};

const footnote = {
  name: 'footnote',
  level: 'block',
  start: (src) => {
    const at = firstPart(src).search(/\n\[\^[^\]\s]+\]:/);
    return at < 0 ? undefined : at + 1;
  },
  tokenizer(src) {
    const found = NOTE.exec(src);
    return found ? {type: 'footnote', raw: found[0], label: found[1], tokens: this.lexer.inline(found[2], [])} : undefined;
  },
  renderer(token) {
    return `<div class="footnote"><span class="note-name">${escaped(token.label)}</span><span>${
      this.parser.parseInline(token.tokens)}</span></div>`;
  },
};

const footnoteMark = {
  name: 'footnoteMark',
  level: 'inline',
  start: (src) => {
    const at = src.indexOf('[^');
    return at < 0 ? undefined : at;
  },
  tokenizer: (src) => {
    const found = NOTE_MARK.exec(src);
    return found ? {type: 'footnoteMark', raw: found[0], label: found[1]} : undefined;
  },
  renderer: (token) => `<sup class="note-mark">${escaped(token.label)}</sup>`,
};

// Returns the address if it leads to another site. Only some of the addresses from marked are escaped.
function outside(href) {
  try {
    const url = new URL(href.replace(/&amp;|&#38;/g, '&').replace(/&quot;/g, '"').replace(/&#39;/g, "'"));
    return url.protocol === 'mailto:' || (/^https?:$/.test(url.protocol) && url.origin !== self.location.origin) ? url.href : null;
  } catch {
    return null;  // it is not an absolute address
  }
}

function link(href, title, text) {
  const address = outside(href || '');
  if (address === null) return text;
  return `<a href="${escaped(address)}"${title ? ` title="${title}"` : ''}>${text}</a>`;
}

export function codeHtml(text, language) {
  return `<pre><code class="language-${escaped(language || 'text')}">${highlighted(text, language)}</code></pre>`;
}

export const languageOf = (info) => (info || '').trim().split(/[\s{,]/)[0].slice(0, 30);

marked.use({
  gfm: true,
  breaks: true,
  mangle: false,
  headerIds: false,
  extensions: [formulaBlock, formulaInline, footnote, footnoteMark],
  tokenizer: {
    html: () => undefined,
    tag: (src) => {
      const found = /^<br\s*\/?>/i.exec(src);  // the only way to break a line in a table cell
      return found ? {type: 'br', raw: found[0]} : undefined;
    },
  },
  renderer: {
    heading: (text, level) => `<h${Math.min(level + 1, 6)}>${text}</h${Math.min(level + 1, 6)}>`,
    code: (text, info) => codeHtml(text, languageOf(info)),
    link,
    image: (href, title, text) => link(href, title, text || escaped(href || '')),
    listitem: (text, task) => `<li${task ? ' class="task"' : ''}>${text}</li>`,
    checkbox: (done) => `<span class="task-box${done ? ' done' : ''}" role="img" aria-label="${done ? 'done' : 'to do'}"></span>`,
    tablecell: (text, {header, align}) => {
      const tag = header ? 'th' : 'td';
      return `<${tag}${align ? ` class="${align}"` : ''}>${text}</${tag}>`;
    },
  },
});

// Returns the tokens of a text. `links` has the addresses that the text names, and new ones are added to it. `more` is
// true while the text still grows.
export function tokensOf(text, links, more) {
  growing = more;
  const lexer = new Lexer(marked.defaults);
  lexer.tokens.links = links;
  // marked recognises an open code block only if its last line ends in a line break.
  lexer.blockTokens(more || !text.endsWith('\n') ? `${text}\n` : text, lexer.tokens);
  for (let next = lexer.inlineQueue.shift(); next; next = lexer.inlineQueue.shift()) {
    if (next.src.length > MAX_INLINE) next.tokens.push({type: 'text', raw: next.src, text: escaped(next.src)});
    else lexer.inlineTokens(next.src, next.tokens);
  }
  return [...lexer.tokens];
}

export const htmlOf = (tokens) => Parser.parse(tokens, marked.defaults);
