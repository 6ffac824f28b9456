// Handles text files that go with the next message: chosen with the button, dropped on the page, or pasted. A long
// pasted text becomes a file too. Each file is shown as a chip with its number of tokens.
import {countTokens} from './api.js';
import {byId, el, icon, iconButton, toast} from './dom.js';

const MAX_BYTES = 1 << 20;
const MAX_FILES = 20;
const LONG_PASTE = 4000;  // characters

const size = (text) => (text.length < 1024 ? `${text.length} characters` : `${Math.round(text.length / 1024)} KB`);
const tokens = (count) => `${count.toLocaleString('en-US')} token${count === 1 ? '' : 's'}`;

// Returns the chip of a file. `remove` is omitted if the file has been sent already.
export function fileChip(file, remove = null) {
  const length = el('span.file-size', {}, typeof file.tokens === 'number' ? tokens(file.tokens) : size(file.text));
  return el('span.file', {title: file.name}, icon('file'), el('span.file-name', {}, file.name), length,
    remove ? iconButton('close', `Remove ${file.name}`, remove) : null);
}

async function readText(file) {
  if (file.size > MAX_BYTES) throw new Error(`it has more than ${MAX_BYTES >> 20} MB`);
  let text;
  try {
    text = new TextDecoder('utf-8', {fatal: true}).decode(await file.arrayBuffer());
  } catch {
    throw new Error('it is no text in UTF-8');
  }
  if (text.includes('\0')) throw new Error('it is no text');
  return text;
}

export class Attachments {
  // `changed` is called when files are added or removed, or when a number of tokens becomes known.
  constructor(changed) {
    this.changed = changed;
    this.files = [];
    this.node = byId('files');
    const chooser = byId('file-chooser');
    byId('attach').addEventListener('click', () => chooser.click());
    chooser.addEventListener('change', () => {
      this.addFiles([...chooser.files]);
      chooser.value = '';
    });
    this.followDrops();
  }

  followDrops() {
    const shade = byId('drop');
    const hasFiles = (event) => [...event.dataTransfer.types].includes('Files');
    document.addEventListener('dragover', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      shade.hidden = false;
    });
    document.addEventListener('dragleave', (event) => {
      if (event.relatedTarget === null) shade.hidden = true;
    });
    document.addEventListener('drop', (event) => {
      shade.hidden = true;
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.addFiles([...event.dataTransfer.files]);
    });
  }

  // Takes files and long text out of a paste, which should not be typed into the field. Returns true if it did.
  paste(data) {
    const files = [...data.files];
    const text = data.getData('text/plain');
    if (files.length) this.addFiles(files);
    else if (text.length > LONG_PASTE) this.add({name: this.nameOfPaste(), text});
    else return false;
    return true;
  }

  nameOfPaste() {
    const count = this.files.filter(({name}) => name.startsWith('Pasted text')).length;
    return count ? `Pasted text ${count + 1}` : 'Pasted text';
  }

  async addFiles(list) {
    for (const file of list) {
      try {
        this.add({name: file.name, text: await readText(file)});
      } catch (error) {
        toast(`“${file.name}” is not added: ${error.message}.`);
      }
    }
  }

  add(file) {
    if (this.files.length === MAX_FILES) return toast(`A message has at most ${MAX_FILES} files.`);
    this.files.push(file);
    this.show();
    countTokens(file.text).then((count) => {
      file.tokens = count;
      this.show();
    }, () => {});  // without a number the chip shows the size
  }

  // Returns the files and forgets them, because they belong to a message from now on.
  take() {
    const taken = this.files;
    this.files = [];
    this.show();
    return taken;
  }

  remove(file) {
    this.files = this.files.filter((each) => each !== file);
    this.show();
    byId('input').focus();
  }

  show() {
    this.node.hidden = this.files.length === 0;
    this.node.replaceChildren(...this.files.map((file) => el('li', {}, fileChip(file, () => this.remove(file)))));
    this.changed();
  }

  tokens() {
    return this.files.reduce((sum, file) => sum + (file.tokens || Math.ceil(file.text.length / 4)), 0);
  }
}
