// Runs the settings dialog, the theme, and the switch for thinking.
import {byId, toast} from './dom.js';
import {apiKey, NUMBERS, resetSettings, saveSettings, setApiKey, settings} from './store.js';

const THEMES = ['system', 'light', 'dark'];

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

function showThinking() {
  byId('thinking').setAttribute('aria-pressed', String(settings.thinking));
}

function fill(form) {
  for (const name of NUMBERS) form.elements[name].value = settings[name] === null ? '' : String(settings[name]);
  form.elements.system.value = settings.system;
  form.elements.theme.value = settings.theme;
  form.elements.thinking.checked = settings.thinking;
  form.elements.api_key.value = apiKey();
}

// Adopts the value of a field if it is allowed.
function take(field, onKey) {
  if (!field.name || !field.checkValidity()) return;
  if (NUMBERS.includes(field.name)) keep({[field.name]: field.value === '' ? null : Number(field.value)});
  else if (field.name === 'thinking') keep({thinking: field.checked});
  else if (field.name === 'api_key') onKey(field.value);
  else keep({[field.name]: field.value});
  showTheme();
  showThinking();
}

// onKey is called when the API key has been changed and settings are closed.
export function setUpPreferences(onKey) {
  const dialog = byId('settings');
  const form = byId('settings-form');
  let keyChanged = false;
  byId('open-settings').addEventListener('click', () => {
    fill(form);
    dialog.showModal();
  });
  form.addEventListener('input', (event) => take(event.target, (key) => {
    setApiKey(key);
    keyChanged = true;
  }));
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close();  // a click beside the dialog
  });
  dialog.addEventListener('close', () => {
    if (keyChanged) onKey();
    keyChanged = false;
  });
  byId('reset-settings').addEventListener('click', () => {
    resetSettings();
    fill(form);
    showThinking();
  });
  byId('theme').addEventListener('click', () => {
    keep({theme: THEMES[(THEMES.indexOf(settings.theme) + 1) % THEMES.length]});
    showTheme();
  });
  byId('thinking').addEventListener('click', () => {
    keep({thinking: !settings.thinking});
    showThinking();
  });
  showTheme();
  showThinking();
}
