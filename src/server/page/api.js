// Talks to the server's OpenAI interface: the model list and a streamed chat.
import {apiKey, NUMBERS} from './store.js';

// Describes an error and what the reader can do about it. `kind` is one of network, key, busy, request, server, broken.
export class ApiError extends Error {
  constructor(kind, title, advice) {
    super(title);
    this.kind = kind;
    this.advice = advice;
  }
}

function headers() {
  const list = {'Content-Type': 'application/json'};
  if (apiKey()) list.Authorization = `Bearer ${apiKey()}`;
  return list;
}

async function statusError(answer) {
  let message = '';
  try {
    const body = await answer.json();
    message = (body.error && body.error.message) || body.message || '';
  } catch {
    // The text is not JSON: the answer comes from a program between the page and the server.
  }
  const said = message ? `The server says: ${message}` : `The server answered with status ${answer.status}.`;
  if (answer.status === 401 || answer.status === 403) {
    return new ApiError('key', 'The server asks for an API key', apiKey() ?
      'The key it was given is not the right one.' : 'It was started with --api-key. Enter the key to go on.');
  }
  if (answer.status === 503 || answer.status === 429) {
    const seconds = parseInt(answer.headers.get('Retry-After') || '', 10);
    return new ApiError('busy', 'The server is busy', `${said} Try again ${
      seconds > 0 ? `in ${seconds} second${seconds === 1 ? '' : 's'}` : 'in a moment'}.`);
  }
  if (answer.status === 413) {
    return new ApiError('request', 'The conversation is too long', `${said} Start a new chat, or shorten the message.`);
  }
  if (answer.status < 500) {
    return new ApiError('request', 'The server did not accept the request',
      `${said} Change the message or the setting it names and try again; if it is too long, start a new chat.`);
  }
  return new ApiError('server', 'The server failed', `${said} Its log has the details. Try again.`);
}

function networkError() {
  return new ApiError('network', 'The server cannot be reached',
    `Check that hadal serve is running at ${location.origin} and that you are connected, then try again.`);
}

const brokenError = () => new ApiError('broken', 'The connection broke before the answer was complete',
  'What has arrived is kept. Try again for a whole answer.');

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, {...options, headers: headers(), cache: 'no-store'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw networkError();
  }
  if (!answer.ok) throw await statusError(answer);
  return answer;
}

// Returns the server's description of its model: {id, root, max_model_len}.
export async function servedModel() {
  const body = await (await request('v1/models', {})).json();
  return (body.data && body.data[0]) || {id: ''};
}

// Returns how many tokens a text has.
export async function countTokens(text) {
  const body = JSON.stringify({prompt: text, add_special_tokens: false});
  return (await (await request('v1/tokenize', {method: 'POST', body})).json()).count;
}

// Returns the text of a message as the model reads it: files in DeepSeek's form, and then the user's text.
function contentOf({content, files = []}) {
  const blocks = files.map(({name, text}) => `[file name]: ${name}\n[file content begin]\n${text}\n[file content end]\n`);
  return blocks.join('') + content;
}

// Builds the request's body for the answer to `messages`. Thoughts and failed answers are not sent again. If the last
// message is an answer, the server continues it without thinking again.
export function chatRequest(model, messages, settings) {
  const history = messages.filter((message) => message.role === 'user' || message.content !== '')
    .map((message) => ({role: message.role, content: contentOf(message)}));
  const continues = history.length > 0 && history.at(-1).role === 'assistant';
  if (settings.system.trim()) history.unshift({role: 'system', content: settings.system});
  const thinking = settings.thinking && !continues;
  const body = {model, messages: history, stream: true,
                stream_options: {include_usage: true, continuous_usage_stats: true},
                chat_template_kwargs: {thinking}};
  if (continues) body.continue_final_message = true;
  if (thinking && settings.effort) body.reasoning_effort = settings.effort;
  const stops = settings.stop.split('\n').filter((line) => line !== '');
  if (stops.length) body.stop = stops;
  for (const name of NUMBERS) {
    if (settings[name] !== null) body[name] = settings[name];
  }
  return body;
}

// Joins pieces of a stream of server-sent events, which may be cut anywhere, into the data of whole events.
export class EventLines {
  constructor() {
    this.rest = '';
  }

  append(text) {
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop();
    return lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trim());
  }
}

// Calls on_event with each event's object until the stream has ended properly. Rejects with an ApiError, or
// with an AbortError after signal.
export async function streamChat(body, signal, onEvent) {
  const answer = await request('v1/chat/completions', {method: 'POST', body: JSON.stringify(body), signal});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const lines = new EventLines();
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === 'AbortError' || signal.aborted) throw error;
      throw brokenError();
    }
    if (part.done) throw brokenError();
    for (const data of lines.append(part.value)) {
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) {
        throw new ApiError('server', 'The server ended the answer',
          `It says: ${event.error.message || 'nothing about why'}. Try again.`);
      }
      onEvent(event);
    }
  }
}
