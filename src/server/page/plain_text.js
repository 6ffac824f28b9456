// Shows a growing text as it is. A long text is split over several elements, so that only the last is laid out again.
import {el} from './dom.js';

const LONG = 2000;

export class PlainText {
  constructor(parent) {
    this.parent = parent;
    this.length = 0;
    this.last = null;
  }

  // `text` begins with the text that is shown already.
  update(text) {
    let fresh = text.slice(this.length);
    this.length = text.length;
    while (fresh) {
      if (this.last === null) {
        this.last = document.createTextNode('');
        this.parent.append(el('div', {}, this.last));
      }
      const end = fresh.indexOf('\n', Math.max(LONG - this.last.length, 0));
      this.last.appendData(end < 0 ? fresh : fresh.slice(0, end + 1));
      fresh = end < 0 ? '' : fresh.slice(end + 1);
      if (end >= 0) this.last = null;
    }
  }
}
