// Runs the settings dialog, the theme, and the switch for thinking. Sampling and the system prompt belong to the
// conversation; the theme and the key belong to the browser.
import {byId, toast} from './dom.js';
import {apiKey, NUMBERS, plainSampling, samplingOf, saveSettings, setApiKey, settings} from './store.js';

const THEMES = ['system', 'light', 'dark'];
const TEXTS = ['system', 'stop', 'effort'];

function keep(changes) {
  if (!saveSettings(changes)) toast('The browser does not keep settings here: they last until this tab is closed.');
}

function showTheme() {
  if (settings.theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
  const button = byId('theme');
  button.querySelector('span').textContent = `Theme: ${settings.theme}`;
  button.title = 'System, light or dark';
}

export class Preferences {
  // `current` returns the conversation that is shown and `save` stores one. `onKey` is called when the API key has been
  // changed and the settings are closed.
  constructor(current, save, onKey) {
    this.current = current;
    this.save = save;
    this.dialog = byId('settings');
    this.form = byId('settings-form');
    let keyChanged = false;
    byId('open-settings').addEventListener('click', () => {
      this.fill();
      this.dialog.showModal();
    });
    this.form.addEventListener('input', (event) => this.take(event.target, (key) => {
      setApiKey(key);
      keyChanged = true;
    }));
    this.dialog.addEventListener('click', (event) => {
      if (event.target === this.dialog) this.dialog.close();  // a click outside the dialog
    });
    this.dialog.addEventListener('close', () => {
      if (keyChanged) onKey();
      keyChanged = false;
    });
    byId('reset-settings').addEventListener('click', () => {
      this.change(plainSampling());
      this.fill();
    });
    byId('keep-settings').addEventListener('click', () => {
      keep(samplingOf(current().settings));
      byId('kept').textContent = 'New chats begin with these.';
    });
    byId('theme').addEventListener('click', () => {
      keep({theme: THEMES[(THEMES.indexOf(settings.theme) + 1) % THEMES.length]});
      showTheme();
    });
    byId('thinking').addEventListener('click', () => this.change({thinking: !current().settings.thinking}));
    showTheme();
  }

  // Shows the settings of the current conversation.
  showChat() {
    byId('thinking').setAttribute('aria-pressed', String(this.current().settings.thinking));
  }

  change(changes) {
    const chat = this.current();
    Object.assign(chat.settings, changes);
    this.save(chat);
    this.showChat();
  }

  fill() {
    const own = this.current().settings;
    const {elements} = this.form;
    for (const name of NUMBERS) elements[name].value = own[name] === null ? '' : String(own[name]);
    for (const name of TEXTS) elements[name].value = own[name];
    elements.thinking.checked = own.thinking;
    elements.theme.value = settings.theme;
    elements.api_key.value = apiKey();
    byId('kept').textContent = '';
  }

  // Adopts the value of a field if it is allowed.
  take(field, onKey) {
    if (!field.name || !field.checkValidity()) return;
    if (NUMBERS.includes(field.name)) this.change({[field.name]: field.value === '' ? null : Number(field.value)});
    else if (field.name === 'thinking') this.change({thinking: field.checked});
    else if (TEXTS.includes(field.name)) this.change({[field.name]: field.value});
    else if (field.name === 'api_key') onKey(field.value);
    else keep({[field.name]: field.value});
    showTheme();
  }
}
