// Renders a part of Markdown for answers: paragraphs, headings, lists, quotes, code, tables and rules. It
// makes DOM nodes and puts text into them as text; strings never contain markup, so a model's text cannot
// become an element that is not in this list.
import {appendAll, copyButton, el} from './dom.js';
import {renderInline} from './inline.js';

const MAX_DEPTH = 8;  // limit of nested quotes and lists; deeper ones are paragraphs
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|)$/;
const SEPARATOR = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const blank = (line) => /^\s*$/.test(line);
const indentOf = (line) => line.match(/^ */)[0].length;

function startsTable(lines, i) {
  return lines[i].includes('|') && i + 1 < lines.length && lines[i + 1].includes('-') &&
    (lines[i + 1].includes('|') || lines[i].trim().startsWith('|')) && SEPARATOR.test(lines[i + 1]);
}

// Returns true if line i begins a block that ends a paragraph.
function startsBlock(lines, i, depth) {
  const line = lines[i];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || startsTable(lines, i)) return true;
  if (depth >= MAX_DEPTH) return false;
  if (QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  return item !== null && item[4] !== undefined && item[4] !== '';
}

function takeFence(lines, i) {
  const [, mark, info] = FENCE.exec(lines[i]);
  const indent = indentOf(lines[i]);
  const code = [];
  let end = i + 1;
  for (; end < lines.length; ++end) {
    const close = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(lines[end]);
    if (close && close[1][0] === mark[0] && close[1].length >= mark.length) {
      ++end;
      break;
    }
    code.push(lines[end].slice(Math.min(indent, indentOf(lines[end]))));
  }
  return [{kind: 'code', language: info.trim().split(/\s/)[0].slice(0, 30), text: code.join('\n')}, end];
}

function takeQuote(lines, i, depth) {
  const inner = [];
  let end = i;
  for (; end < lines.length && !blank(lines[end]); ++end) {
    if (!QUOTE.test(lines[end]) && startsBlock(lines, end, depth)) break;
    inner.push(lines[end].replace(QUOTE, ''));
  }
  return [{kind: 'quote', blocks: parseBlocks(inner, depth + 1)}, end];
}

function takeList(lines, i, depth) {
  const first = ITEM.exec(lines[i]);
  const type = first[2][first[2].length - 1];  // a different mark begins another list
  const items = [];
  let item = null;
  let width = 0;  // width of the mark and the blanks after it
  let end = i;
  let loose = false;
  for (; end < lines.length; ++end) {
    const line = lines[end];
    if (blank(line)) {
      item.push('');
      continue;
    }
    const afterBlank = item !== null && item.length > 0 && item[item.length - 1] === '' && item.length > 1;
    const indent = indentOf(line);
    const mark = ITEM.exec(line);
    if (item !== null && indent >= Math.min(width, 2) && indent > indentOf(lines[i])) {
      item.push(line.slice(Math.min(indent, width)));
    } else if (mark && !RULE.test(line) && mark[2][mark[2].length - 1] === type) {
      loose = loose || afterBlank;
      width = mark[1].length + mark[2].length + Math.min((mark[3] || ' ').length, 4);
      item = [mark[4] || ''];
      items.push(item);
    } else if (!afterBlank && item !== null && item[item.length - 1] !== '' && !startsBlock(lines, end, depth)) {
      item.push(line);
    } else {
      break;
    }
  }
  const ordered = type === '.' || type === ')';
  const contents = items.map((inner) => parseBlocks(inner, depth + 1));
  // Paragraphs are separated if the writer put a blank line between the parts of an item.
  loose = loose || contents.some((blocks, n) => blocks.some((block, b) => b > 0 && items[n][block.line - 1] === ''));
  return [{kind: 'list', ordered, start: ordered ? parseInt(first[2], 10) : 1, loose, items: contents}, end];
}

function cells(line) {
  const row = line.trim().replace(/^\|/, '').replace(/\\\||\|/g, (mark) => (mark === '|' ? '\0' : '|'));
  return row.replace(/\0$/, '').split('\0').map((cell) => cell.trim());
}

function takeTable(lines, i) {
  const align = cells(lines[i + 1]).map((cell) =>
    cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : 'left');
  const rows = [];
  let end = i + 2;
  for (; end < lines.length && !blank(lines[end]) && lines[end].includes('|'); ++end) rows.push(cells(lines[end]));
  return [{kind: 'table', head: cells(lines[i]), align, rows}, end];
}

// Yields blocks with the number of the line at which each begins.
function parseBlocks(lines, depth) {
  const blocks = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    const begin = i;
    let block = null;
    let match = null;
    if (blank(line)) {
      ++i;
      continue;
    }
    if (FENCE.test(line)) {
      [block, i] = takeFence(lines, i);
    } else if ((match = HEADING.exec(line))) {
      block = {kind: 'heading', level: match[1].length, text: (match[2] || '').trim().replace(/(^|[ \t])#+$/, '')};
      ++i;
    } else if (RULE.test(line)) {
      block = {kind: 'rule'};
      ++i;
    } else if (depth < MAX_DEPTH && QUOTE.test(line)) {
      [block, i] = takeQuote(lines, i, depth);
    } else if (depth < MAX_DEPTH && ITEM.test(line)) {
      [block, i] = takeList(lines, i, depth);
    } else if (startsTable(lines, i)) {
      [block, i] = takeTable(lines, i);
    } else {
      ++i;
      while (i < lines.length && !blank(lines[i]) && !startsBlock(lines, i, depth)) ++i;
      block = {kind: 'paragraph', text: lines.slice(begin, i).map((each) => each.trimStart()).join('\n').trimEnd()};
    }
    blocks.push({...block, line: begin});
  }
  return blocks;
}

function withInline(tag, text) {
  const node = el(tag);
  renderInline(text, node);
  return node;
}

function buildCode(block) {
  const code = el('code', {}, block.text);
  const node = el('div.code', {},
    el('div.code-head', {}, el('span', {}, block.language || 'text'), copyButton('Copy code', () => code.textContent)),
    el('pre', {}, code));
  return node;
}

function buildList(block) {
  const list = el(block.ordered ? 'ol' : 'ul');
  if (block.ordered && block.start !== 1) list.start = block.start;
  for (const blocks of block.items) {
    const item = el('li');
    for (const inner of blocks) {
      if (inner.kind === 'paragraph' && !block.loose) renderInline(inner.text, item);
      else item.append(build(inner));
    }
    list.append(item);
  }
  return list;
}

function buildTable(block) {
  const row = (tag, texts) => {
    const node = el('tr');
    block.head.forEach((_, i) => {
      const cell = withInline(tag, texts[i] || '');
      cell.className = block.align[i] || 'left';
      node.append(cell);
    });
    return node;
  };
  return el('div.table', {}, el('table', {}, el('thead', {}, row('th', block.head)),
    appendAll(el('tbody'), block.rows.map((texts) => row('td', texts)))));
}

function build(block) {
  switch (block.kind) {
    case 'code': return buildCode(block);
    case 'heading': return withInline(`h${Math.min(block.level + 2, 6)}`, block.text);  // the page has h1 and h2
    case 'rule': return el('hr');
    case 'quote': return appendAll(el('blockquote'), block.blocks.map(build));
    case 'list': return buildList(block);
    case 'table': return buildTable(block);
    default: return withInline('p', block.text);
  }
}

// MarkdownView is text that grows inside `container`. Blocks that later text cannot change are built once;
// only the last one is rebuilt, so a long answer costs no more per frame than a short one.
export class MarkdownView {
  constructor(container) {
    this.container = container;
    this.stable = 0;  // text before this position is final; it is in stableNodes nodes
    this.stableNodes = 0;
    this.openCode = null;  // the block at `stable` if it is code
  }

  // `text` must begin with the text of the previous call.
  update(text) {
    const tail = text.slice(this.stable);
    const lines = tail.replace(/\r/g, ' ').split('\n');
    const blocks = parseBlocks(lines, 0);
    const existing = this.container.childNodes[this.stableNodes];
    const sameCode = this.openCode !== null && existing && blocks.length > 0 && blocks[0].kind === 'code' &&
      blocks[0].language === this.openCode;
    if (sameCode) {  // kept, together with the reader's selection in it
      const node = existing.querySelector('code').firstChild || existing.querySelector('code');
      if (node.nodeType === Node.TEXT_NODE && blocks[0].text.startsWith(node.data)) {
        if (blocks[0].text.length > node.data.length) node.appendData(blocks[0].text.slice(node.data.length));
      } else {
        existing.querySelector('code').textContent = blocks[0].text;
      }
    }
    const kept = this.stableNodes + (sameCode ? 1 : 0);
    while (this.container.childNodes.length > kept) this.container.lastChild.remove();
    appendAll(this.container, blocks.slice(sameCode ? 1 : 0).map(build));

    // A block whose first line is incomplete may still become a part of the previous one.
    let last = blocks.length - 1;
    if (last > 0 && blocks[last].line === lines.length - 1) --last;
    if (last >= 0) {
      for (let i = 0; i < blocks[last].line; ++i) this.stable += lines[i].length + 1;
      this.stableNodes += last;
      this.openCode = blocks[last].kind === 'code' ? blocks[last].language : null;
    }
  }
}

export function renderMarkdown(text, container) {
  container.replaceChildren();
  new MarkdownView(container).update(text);
}
