// Renders Markdown inside a block: code, emphasis and links. The time is linear in the text for every text,
// and nodes are made only from text: unknown syntax stays as it was written.
import {appendAll, el} from './dom.js';

const MAX_OPEN = 64;  // limit of open emphasis; more marks are text
const LINK = /\[([^[\]\n]{1,500})\]\(\s*<?([^\s<>()]{1,2000}(?:\([^\s()]{0,200}\)[^\s<>()]{0,200}){0,4})>?(?:\s+"[^"\n]{0,300}")?\s*\)/y;
const BARE_LINK = /https?:\/\/[^\s<>"'`|]{0,2000}[^\s<>"'`|.,:;!?)\]*_~]/y;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const WORD = /[\p{L}\p{N}]/u;

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

// Returns a link to another site, or its text: only the web and mail are allowed, and never this server,
// where a GET can change state.
function link(label, target) {
  let url = null;
  try {
    url = new URL(target);
  } catch {
    return label;
  }
  const elsewhere = (url.protocol === 'https:' || url.protocol === 'http:') && url.origin !== location.origin;
  if (!elsewhere && url.protocol !== 'mailto:') return label;
  return el('a', {href: url.href, title: url.href, target: '_blank', rel: 'noopener noreferrer nofollow'}, label);
}

// Returns where runs of backticks begin, by their length.
function backtickRuns(text) {
  const runs = new Map();
  for (const match of text.matchAll(/`+/g)) {
    const length = match[0].length;
    if (!runs.has(length)) runs.set(length, []);
    runs.get(length).push(match.index);
  }
  for (const list of runs.values()) list.reverse();  // the next one is the last entry
  return runs;
}

function closingRun(runs, length, after) {
  const list = runs.get(length) || [];
  while (list.length && list[list.length - 1] < after) list.pop();
  return list.length ? list[list.length - 1] : -1;
}

const TAGS = {'*1': 'em', '_1': 'em', '*2': 'strong', '_2': 'strong', '~2': 'del'};

// Open emphasis is a stack of frames; new nodes go into the top frame.
class Frames {
  constructor() {
    this.stack = [{mark: '', length: 0, children: []}];
  }

  add(child) {
    if (child === '') return;
    this.stack[this.stack.length - 1].children.push(child);
  }

  // The top frame's mark was only text.
  flatten() {
    const frame = this.stack.pop();
    this.add(frame.mark.repeat(frame.length));
    for (const child of frame.children) this.add(child);
  }

  open(mark, length) {
    if (this.stack.length >= MAX_OPEN) return this.add(mark.repeat(length));
    this.stack.push({mark, length, children: []});
  }

  // Closes the nearest frame with this mark and length; returns false if there is none.
  close(mark, length) {
    const index = this.stack.findLastIndex((frame) => frame.mark === mark && frame.length === length);
    if (index < 0) return false;
    while (this.stack.length > index + 1) this.flatten();
    const frame = this.stack.pop();
    this.add(appendAll(el(TAGS[mark + length]), frame.children));
    return true;
  }
}

// Splits a run of marks into closing and opening ones: *** is ** and *.
function takeRun(frames, text, at, end) {
  const mark = text[at];
  const before = at === 0 ? ' ' : text[at - 1];
  const after = end === text.length ? ' ' : text[end];
  const wordBefore = WORD.test(before);
  const wordAfter = WORD.test(after);
  let canOpen = !/\s/.test(after);
  let canClose = !/\s/.test(before);
  if (mark === '_') {  // not inside a word: snake_case stays
    canOpen = canOpen && !wordBefore;
    canClose = canClose && !wordAfter;
  }
  let length = end - at;
  if (length > 3 || (mark === '~' && length !== 2)) return frames.add(text.slice(at, end));
  const parts = mark === '~' ? [2] : [2, 1];
  if (canClose) {
    const inner = frames.stack[frames.stack.length - 1];
    const order = length === 3 && inner.mark === mark && inner.length === 1 ? [1, 2] : parts;
    for (const part of order) {
      if (length >= part && frames.close(mark, part)) length -= part;
    }
  }
  if (!canOpen) return frames.add(mark.repeat(length));
  for (const part of parts) {
    if (length >= part) {
      frames.open(mark, part);
      length -= part;
    }
  }
}

// Appends the nodes of `text` to `parent`. Line ends become line breaks, as people read a chat.
export function renderInline(text, parent) {
  const frames = new Frames();
  const runs = backtickRuns(text);
  let plain = '';
  const flush = () => {
    frames.add(plain);
    plain = '';
  };
  let at = 0;
  while (at < text.length) {
    const c = text[at];
    let match = null;
    if (c === '\n') {
      plain = plain.replace(/ {1,8}$/, '');
      flush();
      frames.add(el('br'));
      at += 1;
    } else if (c === '\\' && (match = matchAt(ESCAPED, text, at))) {
      plain += match[1];
      at += 2;
    } else if (c === '`') {
      let end = at;
      while (text[end] === '`') ++end;
      const close = closingRun(runs, end - at, end);
      if (close < 0) {
        plain += text.slice(at, end);
        at = end;
        continue;
      }
      flush();
      const code = text.slice(end, close).replace(/\n/g, ' ');
      frames.add(el('code', {}, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code));
      at = close + (end - at);
    } else if (c === '[' && (match = matchAt(LINK, text, at))) {
      flush();
      frames.add(link(match[1].replace(/[*_`]/g, ''), match[2]));
      at += match[0].length;
    } else if (c === '<' && (match = matchAt(ANGLE_LINK, text, at))) {
      flush();
      frames.add(link(match[1], match[1]));
      at += match[0].length;
    } else if (c === 'h' && (at === 0 || !WORD.test(text[at - 1])) && (match = matchAt(BARE_LINK, text, at))) {
      flush();
      frames.add(link(match[0], match[0]));
      at += match[0].length;
    } else if (c === '*' || c === '_' || c === '~') {
      let end = at;
      while (text[end] === c) ++end;
      flush();
      takeRun(frames, text, at, end);
      at = end;
    } else {
      plain += c;
      at += 1;
    }
  }
  flush();
  while (frames.stack.length > 1) frames.flatten();
  appendAll(parent, frames.stack[0].children);
}
