// The token that the server asks for, typed once a tab.
import { byId } from "./elements.js";
import { token } from "./server.js";

let proceed = () => {};

// Ask for the token, and go on with it; `isRefused`: the one that was sent is wrong.
export function askToken(onToken, isRefused = token.get() !== null) {
  proceed = onToken;
  byId("token-open").hidden = false;
  byId("token-said").textContent = isRefused
    ? "The server refused this token." : "This server asks for a token. It is kept until this tab is closed.";
  byId("token-value").value = "";
  if (!byId("token").open) byId("token").showModal();
}

byId("token-form").addEventListener("submit", () => {
  token.set(byId("token-value").value.trim());
  proceed();
});
byId("token-cancel").addEventListener("click", () => byId("token").close());
byId("token-open").addEventListener("click", () => askToken(proceed, false));
