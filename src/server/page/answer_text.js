// Shows a model's Markdown. The worker turns it into HTML, block by block. DOMPurify, which allows a short list of
// elements and attributes, turns the HTML into nodes. Only blocks that changed are built again. Until the libraries are
// loaded, and if a text takes too long, it is shown as it is.
import {copyButton, el} from './dom.js';
import {drawFormulas} from './formulas.js';
import {PlainText} from './plain_text.js';

const PATIENCE_MS = 4000;  // after this time without a message the worker is given up
const LOADING_MS = 60000;
const ALLOWED = {
  ALLOWED_TAGS: ['p', 'br', 'em', 'strong', 'del', 'code', 'pre', 'a', 'ul', 'ol', 'li', 'blockquote', 'hr', 'h2', 'h3', 'h4',
                 'h5', 'h6', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'sup', 'span', 'div'],
  ALLOWED_ATTR: ['class', 'href', 'title', 'start', 'role'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
// The HTML parser keeps rows and items only inside of their tables and lists.
const AROUND = {table: ['<table><tbody>', '</tbody></table>'], ul: ['<ul>', '</ul>'], ol: ['<ol>', '</ol>'],
                code: ['<pre><code>', '</code></pre>']};

let purify = null;
let worker = null;
let timer = 0;
let nextId = 1;
const asked = new Map();  // id → AnswerText that waits for the worker, the longest waiting first

function loadPurify() {
  // Debian 12's package reads this undeclared variable for the depth of its root, and throws if it is missing.
  self.shadowNode = self.shadowNode || {__depth: 0};
  purify = purify || import('./lib/purify.js').then(() => self.DOMPurify);
  return purify;
}

// Shows the text that the worker is busy with as it is, and gives the others to a new worker.
function giveUp() {
  worker.terminate();
  worker = null;
  const [hung, ...others] = asked.values();
  asked.clear();
  if (hung) hung.showPlain();
  for (const text of others) text.startAgain();
}

function watch(patience) {
  clearTimeout(timer);
  if (asked.size) timer = setTimeout(giveUp, patience);
}

function startWorker() {
  worker = new Worker(new URL('./text_worker.js', import.meta.url), {type: 'module'});
  let ready = false;
  worker.onmessage = ({data}) => {
    ready = true;
    const text = asked.get(data.id);
    if (data.done) asked.delete(data.id);
    watch(data.waiting ? LOADING_MS : PATIENCE_MS);
    if (text) text.take(data);
  };
  worker.onerror = () => {
    for (const text of asked.values()) text.showPlain();
    asked.clear();
    worker = ready ? null : worker;  // a worker that cannot start is not started again
  };
}

function post(text, message) {
  if (worker === null) startWorker();
  const first = asked.size === 0;
  asked.set(text.id, text);
  worker.postMessage(message);
  if (first) watch(LOADING_MS);
}

function frameCode(pre) {
  const code = pre.querySelector('code');
  const language = (/language-(\S+)/.exec(code.className) || ['', 'text'])[1];
  const frame = el('div.code', {}, el('div.code-head', {}, el('span', {}, language),
    copyButton('Copy code', () => code.textContent)));
  pre.replaceWith(frame);
  pre.tabIndex = 0;  // it may be wider than the screen
  frame.append(pre);
  return frame;
}

function frameTable(table) {
  const frame = el('div.table', {tabIndex: 0, role: 'group', 'aria-label': 'Table'});
  table.replaceWith(frame);
  frame.append(table);
  return frame;
}

// Completes nodes that came from HTML and are not shown yet: links, frames, footnotes of the answer in `body`.
function complete(root, body) {
  for (const link of root.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer nofollow';
  }
  for (const pre of root.querySelectorAll('pre')) frameCode(pre);
  for (const table of root.querySelectorAll('table')) frameTable(table);
  for (const mark of root.querySelectorAll('.note-mark')) {
    const label = mark.textContent;
    mark.replaceChildren(el('button.note-link', {type: 'button', 'aria-label': `Footnote ${label}`, onclick: () => {
      const note = [...body.querySelectorAll('.note-name')].find((node) => node.textContent === label);
      if (note) note.parentNode.scrollIntoView({block: 'center', behavior: 'smooth'});
    }}, label));
  }
}

export class AnswerText {
  // `changed` is called after the screen has changed.
  constructor(body, changed) {
    this.body = body;
    this.changed = changed;
    this.startOver();
    this.plain = null;  // a PlainText, once the text is shown without markup
  }

  startOver() {
    this.id = nextId++;
    this.blocks = [];  // {kind, head, node, parent}; parent has one node for each part
    this.sent = 0;
    this.waiting = false;
    this.finished = false;
  }

  // Shows the text so far. `more` is true while it grows.
  update(text, more) {
    if (this.finished && this.plain === null && text.length > this.sent) {  // the answer is being continued
      this.id = nextId++;
      this.sent = 0;
      this.waiting = this.finished = false;
    }
    this.text = text;
    this.more = more;
    this.ask();
  }

  ask() {
    if (this.plain !== null) return this.showPlain();
    if (this.waiting || this.finished || (this.sent === this.text.length && this.more)) return;
    this.waiting = true;
    this.finished = !this.more;
    post(this, {id: this.id, text: this.text.slice(this.sent), more: this.more});
    this.sent = this.text.length;
  }

  // Returns true while the screen does not show all of the text.
  busy() {
    return this.plain === null && (this.waiting || !this.finished);
  }

  // Call this when the view is not shown any more.
  forget() {
    if (worker !== null) worker.postMessage({id: this.id, forget: true});
    this.waiting = this.finished = true;
  }

  startAgain() {
    this.startOver();
    this.body.replaceChildren();
    this.ask();
  }

  showPlain() {
    if (this.plain === null) {
      const node = el('div.plain');
      this.plain = new PlainText(node);
      this.body.replaceChildren(node);
    }
    this.plain.update(this.text);
    this.changed();
  }

  async take({id, changes, done, count}) {
    const library = await loadPurify().catch(() => null);
    if (id !== this.id || this.plain !== null) return;
    if (library === null) return this.showPlain();
    for (const change of changes || []) this.apply(change, library);
    if (done) {
      while (this.blocks.length > count) this.blocks.pop().node.remove();
      this.waiting = false;
      this.ask();
    }
    this.changed();
  }

  apply({index, kind, head, from, parts}, library) {
    let block = this.blocks[index];
    const old = document.createDocumentFragment();  // the replaced nodes
    if (!block || block.kind !== kind || block.head !== head) {
      const node = this.blockNode(kind, head, library);
      if (block) {
        block.node.replaceWith(node.outer);
        old.append(block.node);
      } else {
        this.body.append(node.outer);
      }
      block = {kind, head, node: node.outer, parent: node.inner};
      this.blocks[index] = block;
    }
    const {parent} = block;
    while (parent.childElementCount > from) old.prepend(parent.lastElementChild);
    const fresh = this.partNodes(kind, parts, library);
    for (const node of fresh) parent.append(node);
    drawFormulas(fresh, old);
  }

  // Returns the empty node of a block, and the node inside it that holds the parts.
  blockNode(kind, head, library) {
    if (kind === 'ol' || kind === 'ul') {
      const list = library.sanitize(`<${kind}${head}></${kind}>`, ALLOWED).firstElementChild;
      return {outer: list, inner: list};
    }
    if (kind === 'table') {
      const table = library.sanitize(`<table>${head}<tbody></tbody></table>`, ALLOWED).firstElementChild;
      const holder = el('div', {}, table);
      complete(holder, this.body);
      return {outer: holder.firstElementChild, inner: table.tBodies[0]};
    }
    if (kind === 'code') {
      const code = el('code', {class: `language-${head || 'text'}`});
      return {outer: frameCode(el('div', {}, el('pre', {}, code)).firstElementChild), inner: code};
    }
    const node = el(kind === 'plain' ? 'div.plain' : 'div.block');
    return {outer: node, inner: node};
  }

  partNodes(kind, parts, library) {
    if (parts.length === 0) return [];
    const wrap = kind === 'code' || kind === 'plain';
    const html = parts.map((part) => (wrap ? `<span>${part}</span>` : part)).join('');
    const [open, close] = AROUND[kind] || ['<div>', '</div>'];
    let node = library.sanitize(open + html + close, ALLOWED).firstElementChild;
    if (kind === 'code') node = node.firstElementChild;
    if (kind === 'table') node = node.tBodies[0];
    if (kind !== 'code') complete(node, this.body);
    return [...node.children];
  }
}
