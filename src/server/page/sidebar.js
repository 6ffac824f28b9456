// Shows the list of conversations: search, choose, rename, export and delete. Each conversation is one stop of the Tab
// key. The arrow keys reach the other conversations and the buttons of each.
import {foundIn} from './conversations.js';
import {byId, el, iconButton} from './dom.js';

const narrow = matchMedia('(max-width: 760px)');

export class Sidebar {
  // `actions` are open(id), rename(id, title), save(id) and remove(id).
  constructor(actions) {
    this.actions = actions;
    this.node = byId('sidebar');
    this.opener = byId('open-sidebar');
    this.list = byId('chats');
    this.field = byId('search');
    this.renaming = null;
    this.state = [[], '', new Map()];
    this.field.addEventListener('input', () => this.show(...this.state));
    this.field.addEventListener('keydown', (event) => this.onSearchKey(event));
    this.list.addEventListener('keydown', (event) => this.onListKey(event));
    this.opener.addEventListener('click', () => this.setOpen(true));
    byId('close-sidebar').addEventListener('click', () => this.setOpen(false));
    byId('shade').addEventListener('click', () => this.setOpen(false));
    narrow.addEventListener('change', () => this.setOpen(false));
    this.setOpen(false);
  }

  isOpen() {
    return narrow.matches && this.node.classList.contains('open');
  }

  // On a narrow screen the list covers the messages and cannot receive the focus while closed.
  setOpen(open) {
    const wasOpen = this.isOpen();
    const shown = open && narrow.matches;
    this.node.classList.toggle('open', shown);
    this.node.inert = narrow.matches && !shown;
    document.querySelector('.main').inert = shown;
    byId('shade').hidden = !shown;
    this.opener.setAttribute('aria-expanded', String(shown));
    if (shown) byId('close-sidebar').focus();
    else if (wasOpen && narrow.matches) this.opener.focus();
  }

  search() {
    this.setOpen(true);
    this.field.focus();
    this.field.select();
  }

  endSearch() {
    this.field.value = '';
    this.show(...this.state);
  }

  onSearchKey(event) {
    const first = this.list.querySelector('.chat');
    if (event.key === 'Escape' && this.field.value) {
      event.stopPropagation();
      this.endSearch();
    } else if (event.key === 'ArrowDown' && first) {
      event.preventDefault();
      first.focus();
    } else if (event.key === 'Enter' && first && !event.isComposing) {
      event.preventDefault();
      first.click();
    }
  }

  onListKey(event) {
    const row = event.target.closest('.chat-row');
    if (!row || this.renaming) return;
    const stops = [...row.querySelectorAll('button')];
    const next = {
      ArrowDown: row.nextElementSibling?.querySelector('.chat'),
      ArrowUp: row.previousElementSibling?.querySelector('.chat') || this.field,
      ArrowRight: stops[stops.indexOf(event.target) + 1],
      ArrowLeft: stops[stops.indexOf(event.target) - 1],
    }[event.key];
    if (next) {
      event.preventDefault();
      next.focus();
    } else if (event.key === 'F2') {
      row.querySelector('[data-does=rename]').click();
    } else if (event.key === 'Delete') {
      row.querySelector('[data-does=remove]').click();
    }
  }

  // `running` contains the ids of conversations that are being answered. Only results of the search are shown.
  show(chats, currentId, running) {
    this.state = [chats, currentId, running];
    if (this.renaming) return;  // the list is shown again when renaming ends
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = chats.map((chat) => [chat, words.length ? foundIn(chat, words) : '']).filter(([, where]) => where !== null);
    const focused = document.activeElement ? document.activeElement.dataset.key : undefined;
    this.list.replaceChildren(...found.map(([chat, where]) => this.row(chat, where, chat.id === currentId, running.has(chat.id))));
    byId('found').textContent = words.length ? (found.length ? `${found.length} found` : 'Nothing found') : '';
    if (focused) {
      const again = this.list.querySelector(`[data-key="${CSS.escape(focused)}"]`);
      if (again) again.focus();
    }
  }

  // `where` is a piece of the text in which the search found its words.
  row(chat, where, current, running) {
    const title = chat.title || 'New chat';
    const open = el('button.chat', {type: 'button', title, 'aria-current': current ? 'true' : null,
                                    'aria-keyshortcuts': 'F2 Delete', onclick: () => this.actions.open(chat.id)},
      el('span.chat-text', {}, el('span.chat-title', {}, title), where ? el('span.chat-where', {}, where) : null),
      running ? el('span.running', {role: 'img', 'aria-label': 'being answered'}) : null);
    open.dataset.key = `open-${chat.id}`;
    const action = (name, does, label, run) => {
      const button = iconButton(name, label, run);
      button.tabIndex = -1;
      button.dataset.does = does;
      return button;
    };
    const row = el('li.chat-row', {}, open, el('span.chat-actions', {},
      action('edit', 'rename', `Rename “${title}”`, () => this.rename(row, chat)),
      action('download', 'export', `Export “${title}” as JSON`, () => this.actions.save(chat.id)),
      action('trash', 'remove', `Delete “${title}”`, () => this.remove(row, chat.id))));
    row.classList.toggle('current', current);
    return row;
  }

  // The focus moves to the row that replaces the removed one, or else to the button of a new chat.
  remove(row, id) {
    const at = [...this.list.children].indexOf(row);
    this.actions.remove(id);
    const rows = this.list.querySelectorAll('.chat');
    (rows[Math.min(at, rows.length - 1)] || byId('new-chat')).focus();
  }

  rename(row, chat) {
    const field = el('input.rename', {'aria-label': 'Name of the conversation', maxlength: '120'});
    field.value = chat.title;
    this.renaming = chat.id;
    const leave = (save) => {
      if (this.renaming !== chat.id) return;
      this.renaming = null;
      const title = field.value.trim();
      this.actions.rename(chat.id, save && title ? title : null);
      const again = this.list.querySelector(`[data-key="open-${CSS.escape(chat.id)}"]`);
      if (again) again.focus();
    };
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') event.stopPropagation();
      if (event.key === 'Escape' || (event.key === 'Enter' && !event.isComposing)) leave(event.key === 'Enter');
    });
    field.addEventListener('blur', () => leave(true));
    row.replaceChildren(field);
    field.focus();
    field.select();
  }
}
