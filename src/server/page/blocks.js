// Cuts an answer into blocks inside the worker, and reports how the blocks changed as the text grew. A block is {kind,
// head, parts}. Its parts are the HTML of a list's items, a table's rows or a code block's lines; any other block has
// one part. Text after a blank line never changes the blocks before it, so only the end of a growing text is parsed
// again.
import {escaped, htmlOf, languageOf, tokensOf} from './grammar.js';
import {LineHighlighter} from './highlighter.js';

const PLAIN_PART = 4096;
const TAB = '\uE009';  // stands for a tab in code, because marked turns tabs at the beginning of a line into spaces

// Collects the text in the form that marked reads, without changing its length: lines end in a line feed, and no line
// begins with a tab.
class Lines {
  constructor() {
    this.whole = '';
    this.rest = '';  // the line that has not ended
    this.fence = '';  // the opening fence of the code block that is open
  }

  // Returns all of the text so far.
  append(text) {
    const lines = (this.rest + text).split(/\r?\n|\r(?!\n|$)/);
    this.rest = lines.pop();
    for (const line of lines) {
      this.whole += `${this.clean(line)}\n`;
      const fence = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
      if (!fence) continue;
      if (!this.fence) this.fence = fence[1];
      else if (fence[1].startsWith(this.fence) && !fence[2].trim()) this.fence = '';
    }
    return this.whole + this.clean(this.rest.replace(/\r$/, ''));
  }

  clean(line) {
    return line.replace(/^[ \t]+/, (blanks) => blanks.replaceAll('\t', this.fence ? TAB : '    '));
  }
}

function plainBlock(text) {
  const parts = [];
  for (let i = 0; i < text.length; i += PLAIN_PART) parts.push(escaped(text.slice(i, i + PLAIN_PART)));
  return {kind: 'plain', head: '', parts};
}

const attribute = (html) => /^<[a-z]+([^>]*)>/.exec(html)[1];

// Renders the list with one item at a time and extracts it, so that each item is as in marked's HTML of the whole list.
function listBlock(token) {
  const shell = htmlOf([{...token, items: []}]);
  const parts = token.items.map((item) => {
    const html = htmlOf([{...token, items: [item]}]).trim();
    return html.slice(html.indexOf('>') + 1, html.lastIndexOf('</')).trim();
  });
  return {kind: token.ordered ? 'ol' : 'ul', head: attribute(shell), parts};
}

function tableBlock(token) {
  const bodyOf = (rows) => htmlOf([{...token, rows}]);
  const head = bodyOf([]).match(/<thead>[^]*<\/thead>/)[0];
  const parts = token.rows.map((row) => bodyOf([row]).match(/<tbody>([^]*)<\/tbody>/)[1].trim());
  return {kind: 'table', head, parts};
}

// Returns true if the fence that begins the block has been closed.
function isClosed(raw) {
  const fence = /^ {0,3}(`{3,}|~{3,})/.exec(raw);
  if (!fence) return true;
  const last = raw.trimEnd().split('\n').slice(1).at(-1) || '';
  return last.trim().startsWith(fence[1]) && /^[`~]+$/.test(last.trim());
}

export class Blocks {
  constructor() {
    this.lines = new Lines();
    this.settled = 0;  // length of the text in characters that cannot change any more
    this.numSettled = 0;  // number of its blocks
    this.links = Object.create(null);  // addresses that the settled text names
    this.shown = [];
    this.code = null;  // the last code block, with its lines that are coloured already
  }

  // Appends to the text and returns {changes, count}, where `count` is the number of blocks. Each change is {index,
  // kind, head, from, parts}: `parts` replaces the block's parts from `from` on. `more` is true while the text grows.
  // The last call parses the whole text again, because an address may be named below the text that uses it.
  append(text, more) {
    const whole = this.lines.append(text);
    if (!more) {
      this.settled = this.numSettled = 0;
      this.links = Object.create(null);
    }
    const tail = whole.slice(this.settled);
    let tokens;
    let fresh;
    try {
      tokens = tokensOf(tail, Object.assign(Object.create(null), this.links), more);
      fresh = tokens.filter((token) => token.type !== 'space' && token.type !== 'def')
        .map((token, i, all) => this.block(token, more && i === all.length - 1));
    } catch {
      tokens = [];  // the text nests deeper than the stack
      fresh = [plainBlock(tail)];
    }
    const blocks = [...this.shown.slice(0, this.numSettled), ...fresh];
    const changes = [];
    for (let i = this.numSettled; i < blocks.length; ++i) {
      const change = this.change(i, this.shown[i], blocks[i]);
      if (change) changes.push(change);
    }
    this.shown = blocks;
    if (more) this.settle(tokens);
    return {changes, count: blocks.length};
  }

  change(index, before, {kind, head, parts}) {
    let from = 0;
    const same = before && before.kind === kind && before.head === head;
    if (same) {
      while (from < parts.length && parts[from] === before.parts[from]) ++from;
      if (from === parts.length && from === before.parts.length) return null;
    }
    return {index, kind, head, from, parts: parts.slice(from)};
  }

  // All blocks before the last one are settled if a blank line precedes it.
  settle(tokens) {
    let last = tokens.length - 1;
    while (last > 0 && (tokens[last].type === 'space' || tokens[last].type === 'def')) --last;
    if (last < 1 || tokens[last - 1].type !== 'space') return;
    const before = tokens.slice(0, last);
    this.settled += before.reduce((sum, token) => sum + token.raw.length, 0);
    for (const {type, tag, href, title} of before) {
      if (type === 'def' && !this.links[tag]) this.links[tag] = {href, title};
    }
    this.numSettled += before.filter((token) => token.type !== 'space' && token.type !== 'def').length;
  }

  block(token, isOpen) {
    if (token.type === 'list') return listBlock(token);
    if (token.type === 'table') return tableBlock(token);
    if (token.type === 'code') return this.codeBlock(token, isOpen && !isClosed(token.raw));
    const html = htmlOf([token]).trim();
    return {kind: 'html', head: '', parts: html ? [html] : []};
  }

  // The last line of an open block is not coloured, because it may continue.
  codeBlock(token, isOpen) {
    const language = languageOf(token.lang);
    const lines = token.text.replaceAll(TAB, '\t').split('\n');
    const last = isOpen ? lines.pop() : null;
    const known = this.code;
    const goesOn = known && known.language === language && known.lines.length <= lines.length &&
      known.lines.every((line, i) => line === lines[i]);
    const code = goesOn ? known : {language, lines: [], parts: [], highlighter: new LineHighlighter(language)};
    for (const line of lines.slice(code.lines.length)) {
      code.lines.push(line);
      code.parts.push(`${code.highlighter.next(line)}\n`);
    }
    this.code = code;
    const parts = [...code.parts];
    if (last !== null) parts.push(escaped(last));
    else if (parts.length) parts.push(parts.pop().slice(0, -1));
    return {kind: 'code', head: language, parts};
  }
}
