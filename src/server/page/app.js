// Runs the chat page: the shown conversation, the answers in progress, and the keyboard.
import {Announcer} from './announcer.js';
import {servedModel} from './api.js';
import {Attachments} from './attachments.js';
import {showContext} from './context_meter.js';
import {Conversations, titleOf} from './conversations.js';
import {byId, el, fillIcons, loadStyle} from './dom.js';
import {followKeys} from './keys.js';
import {Preferences} from './preferences.js';
import {Sidebar} from './sidebar.js';
import {setApiKey} from './store.js';
import {suggestionsFor} from './suggestions.js';
import {add, branch, choose, parentOf, remove, versions} from './tree.js';

// The page is shown before the modules that display messages are loaded.
fillIcons(document);
const [{AssistantView, errorBox, UserView}, {Run}] = await Promise.all([
  import('./messages.js'), import('./run.js'), loadStyle('page/answer.css')]);

const NEAR_END = 60;  // a reader within this many pixels of the end is at the end
const SAVE_EVERY_MS = 1000;

const runs = new Map();  // conversation id → Run
const input = byId('input');
const scroller = byId('scroller');
const list = byId('messages');
const announcer = new Announcer();
const conversations = new Conversations(showChat, showState);
const preferences = new Preferences(() => conversations.current, (chat) => {
  if (conversations.isStored(chat)) conversations.save(chat);
}, () => loadModel());
const attachments = new Attachments(showDraft);
const sidebar = new Sidebar({
  open: (id) => {
    sidebar.setOpen(false);
    conversations.open(conversations.byId(id));
    input.focus();
  },
  rename: (id, title) => conversations.rename(id, title),
  save: (id) => conversations.exportOne(id, model ? model.id : ''),
  remove: (id) => {
    if (runs.has(id)) runs.get(id).stop();
    conversations.remove(id);
  },
});

let views = new Map();  // message → view, for the displayed branch
let model = null;  // as the server lists it
let frame = 0;
let atEnd = true;
let endTop = 0;  // scroll position of the end when it was last scrolled to

// ---- display ----

const running = () => runs.get(conversations.current.id);
const isDraft = () => input.value.trim() !== '' || attachments.files.length > 0;

function scrollToEnd() {
  scroller.scrollTop = scroller.scrollHeight;
  endTop = scroller.scrollTop;
}

// A reader leaves the end by scrolling up. If the text has only grown since the last frame, the reader stays there.
function noteScroll() {
  if (scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END) atEnd = true;
  else if (scroller.scrollTop < endTop - 1) atEnd = false;
  byId('to-end').hidden = atEnd;
}

function showDraft() {
  byId('send').disabled = !isDraft();
  showContext(conversations.current, model ? model.max_model_len : 0, input.value, attachments.tokens());
}

function showState() {
  const {current, all} = conversations;
  const run = running();
  byId('send').hidden = Boolean(run);
  byId('stop').hidden = !run;
  const title = current.title || 'New chat';
  byId('title').textContent = title;
  document.title = current.title ? `${title} – Hadal` : 'Hadal';
  sidebar.show(all, current.id, runs);
  showDraft();
}

function viewOf(message) {
  const chat = conversations.current;
  const actions = {
    versions: () => versions(chat, message),
    show: (version, by) => {
      if (running()) return;
      choose(chat, version);
      conversations.save(chat);
      showChat(null, false);
      const view = views.get(version);
      (view.node.querySelector(`[data-step="${by}"]:not(:disabled)`) || view.node.querySelector('[data-step]:not(:disabled)')).focus();
    },
    retry: () => retry(message),
    resume: () => answer(message),
    setKey: (key) => {
      setApiKey(key);
      retry(message);
    },
    changed: schedule,
    canEdit: () => !running(),
    edit: (text) => ask(text, message.files || [], parentOf(chat, message)),
  };
  return message.role === 'user' ? new UserView(message, actions) : new AssistantView(message, actions);
}

function updateAnswer(message) {
  const view = views.get(message);
  if (!(view instanceof AssistantView)) return;
  const run = running();
  const live = run && run.message === message;
  view.update(live ? run.elapsed() : null, message.id === conversations.current.leaf);
}

function greeting(error) {
  const suggestions = (model ? suggestionsFor(model) : []).map((text) =>
    el('button.suggestion', {type: 'button', onclick: () => ask(text, [], null)}, text));
  return el('section.greeting', {'aria-label': 'Suggestions'},
    el('img', {src: 'page/icon.svg', alt: '', width: '56', height: '56'}),
    el('h2', {}, 'What is on your mind?'),
    error ? errorBox({kind: error.kind, title: error.message, advice: error.advice}, {
      retry: loadModel,
      setKey: (key) => {
        setApiKey(key);
        loadModel();
      },
    }) : el('div.suggestions', {}, ...suggestions));
}

function showChat(error = null, toEnd = true) {
  const place = scroller.scrollTop;
  const messages = branch(conversations.current);
  const before = views;
  views = new Map(messages.map((message) => [message, before.get(message) || viewOf(message)]));
  for (const [message, view] of before) {
    if (!views.has(message)) view.forget();
    else if (view instanceof UserView) view.show();
  }
  list.replaceChildren(...[...views.values()].map((view) => view.node));
  list.classList.toggle('empty', messages.length === 0);
  if (messages.length === 0) list.append(greeting(error));
  messages.forEach(updateAnswer);
  preferences.showChat();
  showState();
  if (toEnd) scrollToEnd();
  else scroller.scrollTop = endTop = place;
  atEnd = toEnd;
  noteScroll();
}

// Answers arrive faster than screens display them, so each frame has one update and one layout.
function schedule() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    const run = running();
    if (run) {
      updateAnswer(run.message);
      announcer.grow(run.message.content);
    }
    if (atEnd) scrollToEnd();
  });
}

// ---- sending ----

// Sends a question as a reply to the message `parent`, or as the first message if that is null.
function ask(text, files, parent) {
  const chat = conversations.current;
  if (running()) return;
  const isFirst = chat.messages.length === 0;
  const message = add(chat, parent, {role: 'user', content: text});
  if (files.length) message.files = files;
  if (isFirst && !chat.named) chat.title = titleOf(text || files[0].name);
  answer(add(chat, message, {role: 'assistant', content: ''}));
}

// Asks for another answer in place of this one, which is kept as another version if it has a text.
function retry(message) {
  const chat = conversations.current;
  if (running()) return;
  const question = parentOf(chat, message);
  if (message.content === '' && chat.leaf === message.id) remove(chat, message);
  answer(add(chat, question, {role: 'assistant', content: ''}));
}

// Lets the server write the message, or continue it if it has a text.
async function answer(message) {
  const chat = conversations.current;
  if (running()) return;
  const run = new Run(chat, message, () => {
    conversations.saveSometimes(chat, SAVE_EVERY_MS);
    if (chat === conversations.current) schedule();
  });
  runs.set(chat.id, run);
  const done = run.answer(async () => (await knownModel()).id, chat.settings);
  conversations.touch(chat);
  conversations.open(chat);
  announcer.begin(message.content.length);
  input.focus({preventScroll: true});
  await done;
  runs.delete(chat.id);
  if (!conversations.isStored(chat)) return;  // the conversation was deleted meanwhile
  conversations.save(chat);
  if (chat !== conversations.current) return showState();
  updateAnswer(message);
  announcer.end(message.content, message.error ? '' : message.stopped ? 'Stopped' : 'Answer complete');
  showState();
  if (atEnd) scrollToEnd();
}

async function knownModel() {
  if (model === null) {
    model = await servedModel();
    byId('model').textContent = model.id.split('/').filter(Boolean).pop() || '';
    byId('model').title = `The model this server runs: ${model.id}`;
    showDraft();
  }
  return model;
}

async function loadModel() {
  let failure = null;
  try {
    await knownModel();
  } catch (error) {
    failure = error;
  }
  if (conversations.current.messages.length === 0) showChat(failure);
}

function submit() {
  if (!isDraft() || running()) return;
  const text = input.value.trim();
  input.value = '';
  fitInput();
  atEnd = true;
  ask(text, attachments.take(), branch(conversations.current).at(-1) || null);
}

function stop() {
  const run = running();
  if (run) run.stop();
  input.focus();
}

// ---- the keyboard and the rest ----

function fitInput() {
  input.style.height = 'auto';
  input.style.height = `${input.scrollHeight}px`;
  showDraft();
}

function newChat() {
  sidebar.setOpen(false);
  conversations.openNew();
  input.focus();
}

followKeys({
  search: () => sidebar.search(),
  newChat,
  submit,
  editLast: () => {
    const question = branch(conversations.current).findLast(({role}) => role === 'user');
    if (question && !running()) views.get(question).edit();
  },
  escape: () => {
    if (sidebar.isOpen()) sidebar.setOpen(false);
    else if (running()) stop();
  },
});
input.addEventListener('input', fitInput);
input.addEventListener('paste', (event) => {
  if (attachments.paste(event.clipboardData)) event.preventDefault();
});
byId('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  submit();
});
byId('stop').addEventListener('click', stop);
byId('new-chat').addEventListener('click', newChat);
byId('export-all').addEventListener('click', () => conversations.exportAll(model ? model.id : ''));
byId('import').addEventListener('click', () => byId('import-chooser').click());
byId('import-chooser').addEventListener('change', (event) => {
  if (event.target.files.length) conversations.importFile(event.target.files[0]);
  event.target.value = '';
});
byId('to-end').addEventListener('click', () => {
  scrollToEnd();
  input.focus({preventScroll: true});
});
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  input.focus();
});
scroller.addEventListener('scroll', noteScroll, {passive: true});
window.addEventListener('storage', (event) => conversations.followStorage(event, (id) => runs.has(id)));
// Heights change late: parts of an answer are laid out near the screen, and formulas when their fonts are loaded.
const size = new ResizeObserver(() => {
  if (atEnd) scrollToEnd();
});
size.observe(list);
size.observe(scroller);
window.addEventListener('pagehide', () => {
  for (const run of runs.values()) conversations.save(run.chat);
});

showChat();
input.focus();
loadModel();
