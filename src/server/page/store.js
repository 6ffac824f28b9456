// Stores conversations and settings in the browser: one entry per conversation, so that tabs do not overwrite
// each other's. Entries of other pages, or unreadable ones, are not changed.
const CHAT = 'hadal.chat.';
const SETTINGS = 'hadal.settings';
const KEY = 'hadal.api_key';  // kept only as long as the tab

export const NUMBERS = ['temperature', 'top_p', 'top_k', 'max_tokens', 'seed'];
const DEFAULTS = {theme: 'system', thinking: false, system: '', temperature: null, top_p: null, top_k: null,
                  max_tokens: null, seed: null};

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
    return null;  // the page may not use storage: everything lasts as long as the tab
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

// Returns a random id, even if crypto.randomUUID is missing (a page that is served neither over TLS nor from
// localhost).
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function validMessage(message) {
  return message !== null && typeof message === 'object' && typeof message.content === 'string' &&
    (message.role === 'user' || message.role === 'assistant');
}

function validChat(chat) {
  return chat !== null && typeof chat === 'object' && typeof chat.id === 'string' && typeof chat.title === 'string' &&
    Array.isArray(chat.messages) && chat.messages.every(validMessage);
}

export const chats = {
  create() {
    return {id: newId(), title: '', named: false, created: Date.now(), updated: Date.now(), messages: []};
  },

  // Returns all conversations, the last used first.
  all() {
    const found = [];
    try {
      for (let i = 0; i < localStorage.length; ++i) {
        const key = localStorage.key(i);
        if (!key.startsWith(CHAT)) continue;
        const chat = parsed(localStorage.getItem(key));
        if (validChat(chat) && CHAT + chat.id === key) found.push(chat);
      }
    } catch {
      return [];
    }
    return found.sort((a, b) => b.updated - a.updated);
  },

  // Returns null if it does not exist.
  load(id) {
    const chat = parsed(read(local, CHAT + id));
    return validChat(chat) ? chat : null;
  },

  // Returns false if the storage is full or not allowed.
  save(chat) {
    return write(local, CHAT + chat.id, JSON.stringify(chat));
  },

  remove(id) {
    write(local, CHAT + id, null);
  },

  // Returns the id of the conversation whose entry this is, or null.
  idOf(key) {
    return key !== null && key.startsWith(CHAT) ? key.slice(CHAT.length) : null;
  },
};

export const settings = {...DEFAULTS, ...(parsed(read(local, SETTINGS)) || {})};

export function saveSettings(changes) {
  Object.assign(settings, changes);
  return write(local, SETTINGS, JSON.stringify(settings));
}

export function resetSettings() {
  return saveSettings({...DEFAULTS, theme: settings.theme});
}

let key = read(session, KEY) || '';

export function apiKey() {
  return key;
}

export function setApiKey(value) {
  key = value;
  write(session, KEY, value || null);
}
