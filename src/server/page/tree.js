// A conversation is a tree of messages: an edited question or a new answer becomes a sibling of the previous one. Each
// message has an id and names its parent. `chat.leaf` is the last message of the branch that is shown.

// Turns a list of consecutive messages, as older versions stored them, into a tree.
export function upgrade(chat) {
  if (chat.messages.length > 0 && chat.messages[0].id === undefined) {
    chat.messages.forEach((message, i) => Object.assign(message, {id: i + 1, parent: i}));
  }
  if (chat.leaf === undefined) chat.leaf = chat.messages.length ? chat.messages.at(-1).id : 0;
  return chat;
}

// Returns the messages of the shown branch, or of the one that ends with the message `last`.
export function branch(chat, last = chat.leaf) {
  const byId = new Map(chat.messages.map((message) => [message.id, message]));
  const found = [];
  for (let message = byId.get(last); message; message = byId.get(message.parent)) {
    found.unshift(message);
    byId.delete(message.id);  // a damaged file could contain a cycle
  }
  return found;
}

// Adds a message after `parent`, or as a first message if `parent` is null, and shows it.
export function add(chat, parent, message) {
  message.id = 1 + Math.max(0, ...chat.messages.map(({id}) => id));
  message.parent = parent ? parent.id : 0;
  chat.messages.push(message);
  chat.leaf = message.id;
  return message;
}

export const parentOf = (chat, message) => chat.messages.find(({id}) => id === message.parent) || null;

// Returns the messages with the same parent, the oldest first.
export const versions = (chat, message) => chat.messages.filter(({parent}) => parent === message.parent);

// Shows the branch that goes through the message, down to its newest end.
export function choose(chat, message) {
  let last = message;
  for (;;) {
    const next = chat.messages.findLast(({parent}) => parent === last.id);
    if (!next) break;
    last = next;
  }
  chat.leaf = last.id;
}

// Removes a message that has no successor.
export function remove(chat, message) {
  chat.messages = chat.messages.filter((each) => each !== message);
  chat.leaf = message.parent;
}
