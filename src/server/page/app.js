// Runs the chat page: conversations, their display, and the answers in progress.
import {Announcer} from './announcer.js';
import {modelName} from './api.js';
import {byId, download, el, fillIcons, toast} from './dom.js';
import {AssistantView, errorBox, UserView} from './messages.js';
import {setUpPreferences} from './preferences.js';
import {Run} from './run.js';
import {Sidebar} from './sidebar.js';
import {chats, setApiKey, settings} from './store.js';

const SUGGESTIONS = ['Tell me a short story about a brave fox.', 'Please add 217254 and 8366.',
                     'Sort the following codes: QZ, HJK, SJW, DRZ, DL'];
const NEAR_END = 60;  // a reader within this many pixels of the end is at the end
const SAVE_EVERY_MS = 1000;

const runs = new Map();  // conversation id → Run
const input = byId('input');
const scroller = byId('scroller');
const list = byId('messages');
const announcer = new Announcer();

let all = chats.all();
let current = chats.create();  // stored once it has a message
let views = new Map();  // message → view, for the displayed conversation
let model = '';
let frame = 0;
let atEnd = true;
let savedAt = 0;
let storageFull = false;

// ---- display ----

function running() {
  return runs.get(current.id);
}

function scrollToEnd() {
  scroller.scrollTop = scroller.scrollHeight;
}

function noteScroll() {
  atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END;
  byId('to-end').hidden = atEnd;
}

function showState() {
  const run = running();
  byId('send').hidden = Boolean(run);
  byId('stop').hidden = !run;
  byId('send').disabled = input.value.trim() === '';
  const title = current.title || 'New chat';
  byId('title').textContent = title;
  document.title = current.title ? `${title} – Hadal` : 'Hadal';
  sidebar.show(all, current.id, runs);
}

function viewOf(message) {
  const actions = {
    retry,
    setKey: (key) => {
      setApiKey(key);
      retry();
    },
    canEdit: () => !running(),
    changed: () => {
      if (atEnd) scrollToEnd();
    },
    edit: (text) => ask(text, current.messages.indexOf(message)),
  };
  return message.role === 'user' ? new UserView(message, actions) : new AssistantView(message, actions);
}

function updateAnswer(message) {
  const view = views.get(message);
  if (!(view instanceof AssistantView)) return;
  const run = running();
  const live = run && run.message === message;
  view.update(live ? run.elapsed() : null, message === current.messages.at(-1));
}

function greeting(error) {
  const suggestions = SUGGESTIONS.map((text) =>
    el('button.suggestion', {type: 'button', onclick: () => ask(text, 0)}, text));
  return el('section.greeting', {}, el('img', {src: 'page/icon.svg', alt: '', width: '56', height: '56'}),
    el('h2', {}, 'What is on your mind?'),
    error ? errorBox({kind: error.kind, title: error.message, advice: error.advice}, {
      retry: loadModel,
      setKey: (key) => {
        setApiKey(key);
        loadModel();
      },
    }) : el('div.suggestions', {}, ...suggestions));
}

function showChat(error = null) {
  views = new Map(current.messages.map((message) => [message, viewOf(message)]));
  list.replaceChildren(...[...views.values()].map((view) => view.node));
  if (current.messages.length === 0) list.append(greeting(error));
  current.messages.forEach(updateAnswer);
  showState();
  scrollToEnd();
  noteScroll();
}

// Answers arrive faster than screens display them, so there is one update per frame.
function schedule() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    const run = running();
    if (!run) return;
    updateAnswer(run.message);
    announcer.grow(run.message.content);
    if (atEnd) scrollToEnd();
  });
}

// ---- conversations ----

function save(chat) {
  const kept = chats.save(chat);
  if (!kept && !storageFull) {
    toast('The browser’s storage is full or closed: this conversation is lost when the tab is. Delete or export others.');
  }
  storageFull = !kept;
  savedAt = performance.now();
  if (!all.includes(chat)) all.unshift(chat);
}

function openChat(chat) {
  current = chat;
  const hash = all.includes(chat) ? `#${chat.id}` : '';
  if (location.hash !== hash) history.pushState(null, '', hash || location.pathname + location.search);
  showChat();
}

function newChat() {
  sidebar.setOpen(false);
  openChat(chats.create());
  input.focus();
}

function removeChat(id) {
  const chat = all.find((each) => each.id === id);
  if (runs.has(id)) runs.get(id).stop();
  all = all.filter((each) => each !== chat);
  chats.remove(id);
  if (chat === current) openChat(chats.create());
  else showState();
  (byId('chats').querySelector('.chat') || byId('new-chat')).focus();
  toast(`Deleted “${chat.title}”.`, {label: 'Undo', run: () => {
    save(chat);
    all.sort((a, b) => b.updated - a.updated);
    openChat(chat);
  }});
}

function exported(list) {
  return JSON.stringify({format: 'hadal-chat', version: 1, model, exported: new Date().toISOString(),
                         conversations: list}, null, 2);
}

const sidebar = new Sidebar({
  open: (id) => {
    sidebar.setOpen(false);
    openChat(all.find((each) => each.id === id));
    input.focus();
  },
  rename: (id, title) => {
    const chat = all.find((each) => each.id === id);
    if (title) {
      chat.title = title;
      chat.named = true;
      save(chat);
    }
    showState();
  },
  save: (id) => {
    const chat = all.find((each) => each.id === id);
    const name = chat.title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'chat';
    download(`${name}.json`, exported([chat]));
  },
  remove: removeChat,
});

// Returns the conversation that the address names.
function followHash() {
  const chat = all.find((each) => `#${each.id}` === location.hash);
  if (chat ? chat === current : !all.includes(current)) return;
  current = chat || chats.create();
  showChat();
}

// Adopts a conversation that another tab has changed.
function followStorage(event) {
  const id = chats.idOf(event.key);
  if (id === null || runs.has(id)) return;
  const chat = chats.load(id);
  all = all.filter((each) => each.id !== id);
  if (chat) all.push(chat);
  all.sort((a, b) => b.updated - a.updated);
  if (id !== current.id) return showState();
  if (chat) current = chat;
  showChat();
}

// ---- sending ----

// Returns the beginning of the question, cut between words.
function titleOf(text) {
  const line = text.trim().split('\n')[0];
  return line.length <= 60 ? line : `${line.slice(0, 60).replace(/\s+\S*$/, '')}…`;
}

// Makes the text message `index` of the conversation, and removes that message and all later ones.
function ask(text, index) {
  if (running()) return;
  current.messages.length = index;
  current.messages.push({role: 'user', content: text});
  if (index === 0 && !current.named) current.title = titleOf(text);
  answer();
}

function retry() {
  if (running()) return;
  if (current.messages.at(-1)?.role === 'assistant') current.messages.pop();
  if (current.messages.length > 0) answer();
}

async function answer() {
  const chat = current;
  const message = {role: 'assistant', content: ''};
  chat.messages.push(message);
  chat.updated = Date.now();
  const run = new Run(chat, message, () => {
    if (performance.now() - savedAt > SAVE_EVERY_MS && all.includes(chat)) save(chat);
    if (chat === current) schedule();
  });
  runs.set(chat.id, run);
  all = [chat, ...all.filter((each) => each !== chat)];
  save(chat);
  openChat(chat);
  announcer.begin();
  input.focus({preventScroll: true});
  await run.answer(knownModel, {...settings});
  runs.delete(chat.id);
  if (!all.includes(chat)) return;  // it was deleted meanwhile
  save(chat);
  if (chat !== current) return showState();
  updateAnswer(message);
  announcer.end(message.content, message.error ? '' : message.stopped ? 'Stopped' : 'Answer complete');
  showState();
  if (atEnd) scrollToEnd();
}

async function knownModel() {
  if (!model) {
    model = await modelName();
    byId('model').textContent = model.split('/').filter(Boolean).pop() || '';
    byId('model').title = `The model this server runs: ${model}`;
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
  if (current.messages.length === 0) showChat(failure);
}

function submit() {
  const text = input.value.trim();
  if (!text || running()) return;
  input.value = '';
  fitInput();
  atEnd = true;
  ask(text, current.messages.length);
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
  byId('send').disabled = input.value.trim() === '';
}

function onEscape(event) {
  if (event.key !== 'Escape' || event.isComposing || byId('settings').open) return;
  if (sidebar.isOpen()) sidebar.setOpen(false);
  else if (running()) stop();
}

fillIcons(document);
input.addEventListener('input', fitInput);
input.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
byId('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  submit();
});
byId('stop').addEventListener('click', stop);
byId('new-chat').addEventListener('click', newChat);
byId('export-all').addEventListener('click', () => {
  if (all.length) download('hadal-conversations.json', exported(all));
  else toast('There is no conversation to export yet.');
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
document.addEventListener('keydown', onEscape);
window.addEventListener('hashchange', followHash);
window.addEventListener('popstate', followHash);
window.addEventListener('storage', followStorage);
window.addEventListener('resize', () => {
  if (atEnd) scrollToEnd();
});
window.addEventListener('pagehide', () => {
  for (const run of runs.values()) save(run.chat);
});
setUpPreferences(() => loadModel());

current = all.find((chat) => `#${chat.id}` === location.hash) || current;
showChat();
input.focus();
loadModel();
