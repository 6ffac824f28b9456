// Stores conversations and settings in the browser. Each conversation has its own entry, so that tabs do not overwrite
// each other's. Entries of other pages, and unreadable ones, are not changed.
import {upgrade} from './tree.js';

const CHAT = 'hadal.chat.';
const SETTINGS = 'hadal.settings';
const KEY = 'hadal.api_key';  // kept only for the lifetime of the tab

export const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'frequency_penalty', 'presence_penalty',
                        'repetition_penalty', 'seed'];
// These settings belong to a conversation. The stored settings are the defaults of new conversations.
const SAMPLING = {system: '', stop: '', thinking: false, effort: '', ...Object.fromEntries(NUMBERS.map((name) => [name, null]))};
const DEFAULTS = {theme: 'system', ...SAMPLING};

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function read(storage, key) {
  try {
    return storage().getItem(key);
  } catch {
    return null;  // the page may not use storage, so everything lasts only as long as the tab
  }
}

function write(storage, key, value) {
  try {
    if (value === null) storage().removeItem(key);
    else storage().setItem(key, value);
    return true;
  } catch {
    return false;
  }
}

const local = () => localStorage;
const session = () => sessionStorage;

export const settings = {...DEFAULTS, ...(parsed(read(local, SETTINGS)) || {})};

export function saveSettings(changes) {
  Object.assign(settings, changes);
  return write(local, SETTINGS, JSON.stringify(settings));
}

export const samplingOf = (all) => Object.fromEntries(Object.keys(SAMPLING).map((name) => [name, all[name]]));
export const plainSampling = () => ({...SAMPLING});

// Returns a random id, even if crypto.randomUUID is missing (on a page that is served neither over TLS nor from
// localhost).
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function validMessage(message) {
  return message !== null && typeof message === 'object' && typeof message.content === 'string' &&
    (message.role === 'user' || message.role === 'assistant');
}

const hasIds = (messages) => new Set(messages.map(({id}) => id)).size === messages.length &&
  messages.every(({id, parent}) => Number.isSafeInteger(id) && id > 0 && Number.isSafeInteger(parent));

function validChat(chat) {
  return chat !== null && typeof chat === 'object' && typeof chat.id === 'string' && typeof chat.title === 'string' &&
    Array.isArray(chat.messages) && chat.messages.every(validMessage) &&
    (hasIds(chat.messages) || chat.messages.every(({id}) => id === undefined));
}

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isFile = (file) => isObject(file) && typeof file.name === 'string' && typeof file.text === 'string';

// A file may come from anywhere, so parts that this page would not write are left out.
function cleaned(message) {
  if (!Array.isArray(message.files) || !message.files.every(isFile)) delete message.files;
  if (typeof message.reasoning !== 'string') delete message.reasoning;
  if (!isObject(message.stats) || Object.values(message.stats).some((value) => value !== null && typeof value !== 'number')) {
    delete message.stats;
  }
  if (!Array.isArray(message.calls) || !message.calls.every((call) => isObject(call) &&
      typeof call.name === 'string' && typeof call.arguments === 'string')) delete message.calls;
  if (!isObject(message.error) || typeof message.error.title !== 'string') delete message.error;
  return message;
}

function setting(name, value, otherwise) {
  const kind = NUMBERS.includes(name) ? 'number' : typeof SAMPLING[name];
  return typeof value === kind ? value : otherwise;
}

// Returns the conversation in the current format, or null if it is not a conversation.
function readChat(chat) {
  if (!validChat(chat)) return null;
  const own = isObject(chat.settings) ? chat.settings : settings;
  chat.settings = Object.fromEntries(Object.keys(SAMPLING).map((name) => [name, setting(name, own[name], SAMPLING[name])]));
  chat.messages.forEach(cleaned);
  return upgrade(chat);
}

export const chats = {
  create() {
    return {id: newId(), title: '', named: false, created: Date.now(), updated: Date.now(), messages: [], leaf: 0,
            settings: samplingOf(settings)};
  },

  // Returns all conversations, the last used first.
  all() {
    const found = [];
    try {
      for (let i = 0; i < localStorage.length; ++i) {
        const key = localStorage.key(i);
        if (!key.startsWith(CHAT)) continue;
        const chat = readChat(parsed(localStorage.getItem(key)));
        if (chat && CHAT + chat.id === key) found.push(chat);
      }
    } catch {
      return [];
    }
    return found.sort((a, b) => b.updated - a.updated);
  },

  // Returns null if the conversation does not exist.
  load(id) {
    return readChat(parsed(read(local, CHAT + id)));
  },

  // Returns false if the storage is full or not allowed.
  save(chat) {
    return write(local, CHAT + chat.id, JSON.stringify(chat));
  },

  // Returns a text for a file with these conversations.
  exported(list, model) {
    return JSON.stringify({format: 'hadal-chat', version: 2, model, exported: new Date().toISOString(),
                           conversations: list}, null, 2);
  },

  // Returns the conversations of such a text, including those of earlier versions. Throws an Error that says what is
  // wrong.
  imported(text) {
    const file = parsed(text);
    if (file === null || typeof file !== 'object' || file.format !== 'hadal-chat') {
      throw new Error('it is no file that this page has exported');
    }
    const found = Array.isArray(file.conversations) ? file.conversations.map(readChat) : [];
    if (found.length === 0 || found.includes(null)) throw new Error('a conversation in it is damaged');
    return found.map((chat) => (read(local, CHAT + chat.id) === null ? chat : {...chat, id: newId()}));
  },

  remove(id) {
    write(local, CHAT + id, null);
  },

  // Returns the id of the conversation whose entry this is, or null.
  idOf(key) {
    return key !== null && key.startsWith(CHAT) ? key.slice(CHAT.length) : null;
  },
};

let key = read(session, KEY) || '';

export function apiKey() {
  return key;
}

export function setApiKey(value) {
  key = value;
  write(session, KEY, value || null);
}
