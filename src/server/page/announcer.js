// Reads a growing answer to screen readers: whole sentences, not each token, and not so often that they pile up.
import {byId, el} from './dom.js';

const EVERY_MS = 1500;
const KEPT = 6;  // lines in the live region

export class Announcer {
  constructor() {
    this.node = byId('announcer');
    this.said = 0;
    this.at = 0;
  }

  say(text) {
    this.node.append(el('p', {}, text));
    while (this.node.childElementCount > KEPT) this.node.firstElementChild.remove();
  }

  // `length` is the number of characters that a continued answer has already.
  begin(length) {
    this.said = length;
    this.at = performance.now();
    this.say('Answering');
  }

  // `text` is the answer so far.
  grow(text) {
    const now = performance.now();
    if (now - this.at < EVERY_MS) return;
    const fresh = text.slice(this.said);
    const end = Math.max(fresh.lastIndexOf('. '), fresh.lastIndexOf('? '), fresh.lastIndexOf('! '),
      fresh.lastIndexOf('\n'));
    if (end < 0) return;
    this.at = now;
    this.said += end + 1;
    this.say(fresh.slice(0, end + 1));
  }

  end(text, how) {
    if (text.length > this.said) this.say(text.slice(this.said));
    this.said = text.length;
    this.say(how);
  }
}
