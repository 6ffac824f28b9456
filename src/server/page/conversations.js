// Keeps the conversations of this browser and which of them is shown. It opens, stores and searches them, exports and
// imports files, and follows changes by other tabs.
import {download, toast} from './dom.js';
import {chats} from './store.js';

// Returns the beginning of the question, cut between words.
export function titleOf(text) {
  const line = text.trim().split('\n')[0];
  return line.length <= 60 ? line : `${line.slice(0, 60).replace(/\s+\S*$/, '')}…`;
}

// Returns a short text around the first of the words, which is empty if only the title has that word. Returns null if
// the conversation lacks one of the words.
export function foundIn(chat, words) {
  const texts = [chat.title, ...chat.messages.map(({content}) => content)];
  const whole = texts.join('\n').toLowerCase();
  if (!words.every((word) => whole.includes(word))) return null;
  for (const text of texts.slice(1)) {
    const at = text.toLowerCase().indexOf(words[0]);
    if (at >= 0) return `${at > 20 ? '…' : ''}${text.slice(Math.max(at - 20, 0), at + 60).replace(/\s+/g, ' ')}`;
  }
  return '';
}

export class Conversations {
  // `shown` is called when another conversation, or a new state of the current one, must be displayed. `listed` is
  // called when only the list of conversations has changed.
  constructor(shown, listed) {
    this.shown = shown;
    this.listed = listed;
    this.all = chats.all();
    this.current = this.all.find((chat) => `#${chat.id}` === location.hash) || chats.create();
    this.storageFull = false;
    this.savedAt = 0;
    window.addEventListener('hashchange', () => this.followHash());
    window.addEventListener('popstate', () => this.followHash());
  }

  byId(id) {
    return this.all.find((chat) => chat.id === id);
  }

  isStored(chat) {
    return this.all.includes(chat);
  }

  save(chat) {
    const kept = chats.save(chat);
    if (!kept && !this.storageFull) {
      toast('The browser’s storage is full or closed: this conversation is lost when the tab is. Delete or export others.');
    }
    this.storageFull = !kept;
    this.savedAt = performance.now();
    if (!this.isStored(chat)) this.all.unshift(chat);
  }

  // Saves the conversation if the last save was more than `interval` ms ago.
  saveSometimes(chat, interval) {
    if (performance.now() - this.savedAt > interval && this.isStored(chat)) this.save(chat);
  }

  // Moves the conversation to the front of the list and saves it.
  touch(chat) {
    chat.updated = Date.now();
    this.all = [chat, ...this.all.filter((each) => each !== chat)];
    this.save(chat);
  }

  open(chat) {
    this.current = chat;
    const hash = this.isStored(chat) ? `#${chat.id}` : '';
    if (location.hash !== hash) history.pushState(null, '', hash || location.pathname + location.search);
    this.shown();
  }

  openNew() {
    this.open(chats.create());
  }

  rename(id, title) {
    const chat = this.byId(id);
    if (title) {
      Object.assign(chat, {title, named: true});
      this.save(chat);
    }
    this.listed();
  }

  remove(id) {
    const chat = this.byId(id);
    this.all = this.all.filter((each) => each !== chat);
    chats.remove(id);
    if (chat === this.current) this.openNew();
    else this.listed();
    toast(`Deleted “${chat.title}”.`, {label: 'Undo', run: () => {
      this.save(chat);
      this.sort();
      this.open(chat);
    }});
  }

  sort() {
    this.all.sort((a, b) => b.updated - a.updated);
  }

  exportOne(id, model) {
    const chat = this.byId(id);
    const name = chat.title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'chat';
    download(`${name}.json`, chats.exported([chat], model));
  }

  exportAll(model) {
    if (this.all.length) download('hadal-conversations.json', chats.exported(this.all, model));
    else toast('There is no conversation to export yet.');
  }

  async importFile(file) {
    let found;
    try {
      found = chats.imported(await file.text());
    } catch (error) {
      return toast(`“${file.name}” cannot be imported: ${error.message}.`);
    }
    for (const chat of found) this.save(chat);
    this.sort();
    this.open(found[0]);
    toast(`Imported ${found.length} conversation${found.length === 1 ? '' : 's'}.`);
  }

  // Shows the conversation that the address names.
  followHash() {
    const chat = this.all.find((each) => `#${each.id}` === location.hash);
    if (chat ? chat === this.current : !this.isStored(this.current)) return;
    this.current = chat || chats.create();
    this.shown();
  }

  // Adopts a conversation that another tab has changed.
  followStorage(event, isRunning) {
    const id = chats.idOf(event.key);
    if (id === null || isRunning(id)) return;
    const chat = chats.load(id);
    this.all = this.all.filter((each) => each.id !== id);
    if (chat) this.all.push(chat);
    this.sort();
    if (id !== this.current.id) return this.listed();
    if (chat) this.current = chat;
    this.shown();
  }
}
