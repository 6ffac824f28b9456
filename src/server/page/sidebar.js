// Shows the list of conversations: choose, rename, export and delete.
import {byId, el, iconButton} from './dom.js';

const narrow = matchMedia('(max-width: 760px)');

export class Sidebar {
  // `actions` are open(id), rename(id, title), save(id) and remove(id).
  constructor(actions) {
    this.actions = actions;
    this.node = byId('sidebar');
    this.opener = byId('open-sidebar');
    this.list = byId('chats');
    this.renaming = null;
    this.opener.addEventListener('click', () => this.setOpen(true));
    byId('close-sidebar').addEventListener('click', () => this.setOpen(false));
    byId('shade').addEventListener('click', () => this.setOpen(false));
    narrow.addEventListener('change', () => this.setOpen(false));
    this.setOpen(false);
  }

  isOpen() {
    return narrow.matches && this.node.classList.contains('open');
  }

  // On a narrow screen the list covers the messages and cannot be reached while closed.
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

  // `running` contains the ids of conversations that are being answered.
  show(chats, currentId, running) {
    if (this.renaming) return;  // the list is shown again when renaming ends
    const focused = document.activeElement ? document.activeElement.dataset.key : undefined;
    this.list.replaceChildren(...chats.map((chat) => this.row(chat, chat.id === currentId, running.has(chat.id))));
    if (focused) {
      const again = this.list.querySelector(`[data-key="${CSS.escape(focused)}"]`);
      if (again) again.focus();
    }
  }

  row(chat, current, running) {
    const title = chat.title || 'New chat';
    const open = el('button.chat', {type: 'button', title, 'aria-current': current ? 'true' : null,
                                    onclick: () => this.actions.open(chat.id)},
      el('span.chat-title', {}, title), running ? el('span.running', {role: 'img', 'aria-label': 'being answered'}) : null);
    open.dataset.key = `open-${chat.id}`;
    const row = el('li.chat-row', {}, open, el('span.chat-actions', {},
      iconButton('edit', `Rename “${title}”`, () => this.rename(row, chat)),
      iconButton('download', `Export “${title}” as JSON`, () => this.actions.save(chat.id)),
      iconButton('trash', `Delete “${title}”`, () => this.actions.remove(chat.id))));
    row.classList.toggle('current', current);
    return row;
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
