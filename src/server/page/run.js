// Runs one answer in progress: sends the request and stores the arriving data in a message of the conversation.
import {ApiError, chatRequest, streamChat} from './api.js';
import {branch} from './tree.js';

// Adds a piece of a function call. The first piece names the function; later ones with the same index extend its
// arguments.
export function addCall(calls, {index = 0, id, function: named = {}}) {
  calls[index] = calls[index] || {id: '', name: '', arguments: ''};
  if (id) calls[index].id = id;
  if (named.name) calls[index].name = named.name;
  calls[index].arguments += named.arguments || '';
}

export class Run {
  // `changed` is called after each event; it must be cheap.
  constructor(chat, message, changed) {
    this.chat = chat;
    this.message = message;
    this.changed = changed;
    this.abort = new AbortController();
    this.begun = performance.now();
  }

  elapsed() {
    return performance.now() - this.begun;
  }

  stop() {
    this.abort.abort();
  }

  // Resolves when the answer has ended in any way, which the message then records. A message that already has a text is
  // continued.
  async answer(model, settings) {
    const {message} = this;
    const continues = message.content !== '';
    const sent = branch(this.chat, continues ? message.id : message.parent);
    this.tokensBefore = continues && message.stats ? message.stats.tokens : 0;
    message.stats = {first_ms: null, last_ms: null, first_tokens: this.tokensBefore, tokens: this.tokensBefore, prompt: 0,
                     cached: null, thinking: continues && message.stats ? message.stats.thinking : 0};
    for (const name of ['stopped', 'finish', 'error']) delete message[name];
    message.unfinished = true;  // stays set if the page is closed now
    try {
      const name = await model();
      if (this.abort.signal.aborted) throw new DOMException('stopped', 'AbortError');
      await streamChat(chatRequest(name, sent, settings), this.abort.signal, (event) => this.take(event));
    } catch (error) {
      if (error.name === 'AbortError' || this.abort.signal.aborted) {
        message.stopped = true;
      } else if (error instanceof ApiError) {
        message.error = {kind: error.kind, title: error.message, advice: error.advice};
      } else {
        message.error = {kind: 'broken', title: 'The answer could not be read', advice: `${error.message}. Try again.`};
      }
    }
    delete message.unfinished;
    this.endThinking();
  }

  take(event) {
    const {message} = this;
    const {stats} = message;
    const choice = event.choices && event.choices[0];
    const delta = (choice && choice.delta) || {};
    const calls = delta.tool_calls || [];
    if (delta.reasoning_content) message.reasoning = (message.reasoning || '') + delta.reasoning_content;
    if (delta.content) {
      this.endThinking();
      message.content += delta.content;
    }
    if (calls.length) message.calls = message.calls || [];
    for (const call of calls) addCall(message.calls, call);
    if (event.usage) this.takeUsage(event.usage);
    if (delta.reasoning_content || delta.content || calls.length) {
      const now = this.elapsed();
      if (stats.first_ms === null) {
        stats.first_ms = now;
        stats.first_tokens = stats.tokens;
      }
      stats.last_ms = now;
    }
    if (choice && choice.finish_reason) message.finish = choice.finish_reason;
    this.changed(this);
  }

  takeUsage(usage) {
    const {stats} = this.message;
    stats.tokens = this.tokensBefore + usage.completion_tokens;
    stats.prompt = usage.prompt_tokens;
    stats.context = usage.prompt_tokens + usage.completion_tokens;
    if (usage.reasoning_tokens > 0) stats.thinking = usage.reasoning_tokens;
    const details = usage.prompt_tokens_details;
    if (details && typeof details.cached_tokens === 'number') stats.cached = details.cached_tokens;
  }

  endThinking() {
    const {message} = this;
    if (message.reasoning && message.thinking_ms === undefined) {
      message.thinking_ms = this.elapsed() - (message.stats.first_ms || 0);
    }
  }
}
