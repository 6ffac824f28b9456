// Turns Markdown into HTML outside the page's main thread, which therefore stays free however long a text takes.
// Incoming messages are {id, text, more} or {id, forget}. Each {id, text, more} is answered by any number of {id,
// changes} and then {id, done, count}. {waiting} says that a library is being loaded.
import {Blocks} from './blocks.js';
import {loadHighlighter, needsHighlighter} from './highlighter.js';

const BATCH = 8192;  // characters of HTML that the page builds at a time

const documents = new Map();
let last = Promise.resolve();

// Sends the changes in pieces that the page can build without a noticeable pause.
function send(id, changes) {
  let batch = [];
  let size = 0;
  const flush = () => {
    if (batch.length) self.postMessage({id, changes: batch});
    batch = [];
    size = 0;
  };
  for (const change of changes) {
    let from = 0;
    do {
      let end = from;
      while (end < change.parts.length && size < BATCH) size += change.parts[end++].length + 64;
      batch.push({...change, from: change.from + from, parts: change.parts.slice(from, end)});
      from = end;
      if (size >= BATCH) flush();
    } while (from < change.parts.length);
  }
  flush();
}

async function answer({id, text, more, forget}) {
  if (forget) {
    documents.delete(id);
    return;
  }
  if (!documents.has(id)) documents.set(id, new Blocks());
  const blocks = documents.get(id);
  if (needsHighlighter(blocks.lines.rest + text)) {
    self.postMessage({waiting: true});
    await loadHighlighter();
  }
  const {changes, count} = blocks.append(text, more);
  send(id, changes);
  self.postMessage({id, done: true, count});
  if (!more) documents.delete(id);
}

self.onmessage = (event) => {
  last = last.then(() => answer(event.data));
};
self.postMessage({ready: true});
