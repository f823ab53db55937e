--- The settings: defaults, then `vim.g.pillion`, then what `setup` was given.

---@class pillion.Keys
---@field accept string|string[]|false
---@field accept_line string|string[]|false
---@field accept_word string|string[]|false
---@field next string|string[]|false
---@field prev string|string[]|false
---@field dismiss string|string[]|false
---@field trigger string|string[]|false

---@class pillion.Config
---@field enabled boolean whether it is on when Neovim starts
---@field cmd string[] what joins Neovim to the daemon
---@field auto_trigger boolean whether suggestions come without being asked for
---@field debounce number|false milliseconds after a key; false follows the measured latency
---@field hide_during_completion boolean whether suggestions stay away from an open popup menu
---@field max_line_suffix integer no suggestion unasked with more characters right of the cursor
---@field max_file_bytes integer larger files are left alone
---@field core_inline_completion boolean leave showing and accepting to Neovim 0.12 itself
---@field filetypes table<string, boolean> `["*"]` is for those that are not named
---@field root_markers string[] what marks a project's folder
---@field keys pillion.Keys|false

local M = {}

---@type pillion.Config
local DEFAULTS = {
  enabled = true,
  cmd = { "pillion", "lsp" },
  auto_trigger = true,
  debounce = false,
  hide_during_completion = true,
  max_line_suffix = 8,
  max_file_bytes = 4 * 1024 * 1024,
  core_inline_completion = false,
  filetypes = { ["*"] = true, help = false, gitrebase = false },
  root_markers = { ".git", ".hg", ".jj", "pyproject.toml", "package.json", "Cargo.toml", "go.mod" },
  keys = {
    accept = "<Tab>",
    accept_line = "<S-Tab>",
    accept_word = "<M-Right>",
    next = "<M-]>",
    prev = "<M-[>",
    dismiss = "<C-]>",
    trigger = "<M-\\>",
  },
}

---@type pillion.Config?
local merged

---@param value any
---@param default any
---@return string? what is wrong with it
local function complaint(value, default)
  local wanted = type(default)
  if type(value) == wanted then
    return nil
  end
  return ("must be a %s, not %s"):format(wanted, vim.inspect(value))
end

---@param keys any
---@return string[] problems
local function key_problems(keys)
  local problems = {} ---@type string[]
  for name, lhs in pairs(keys) do
    if DEFAULTS.keys[name] == nil then
      table.insert(problems, ("keys.%s is no setting"):format(name))
    elseif lhs ~= false and type(lhs) ~= "string" and not vim.islist(lhs) then
      table.insert(problems, ("keys.%s must be a key, a list of keys or false"):format(name))
    end
  end
  return problems
end

--- What is wrong with settings, one sentence each.
---@param given table<string, any>
---@return string[]
function M.problems(given)
  local problems = {} ---@type string[]
  for name, value in pairs(given) do
    local default = DEFAULTS[name]
    local what ---@type string?
    if default == nil then
      what = "is no setting"
    elseif name == "debounce" then
      what = value ~= false
          and (type(value) ~= "number" or value < 0)
          and "must be milliseconds or false"
        or nil
    elseif name == "keys" then
      if type(value) == "table" then
        vim.list_extend(problems, key_problems(value))
      elseif value ~= false then
        what = "must be a table or false"
      end
    else
      what = complaint(value, default)
    end
    if what then
      table.insert(problems, ("%s %s"):format(name, what))
    end
  end
  table.sort(problems)
  return problems
end

--- Merge settings; what is wrong is said once and left at its default.
---@param given table<string, any>?
---@return pillion.Config
function M.set(given)
  local asked = vim.tbl_deep_extend("force", vim.g.pillion or {}, given or {})
  local problems = M.problems(asked)
  if #problems > 0 then
    vim.notify("pillion: " .. table.concat(problems, "; "), vim.log.levels.WARN)
    for _, problem in ipairs(problems) do
      local name, key = problem:match("^([%w_]+)%.?([%w_]*)")
      if name == "keys" and key ~= "" then
        asked.keys[key] = nil
      else
        asked[name] = nil
      end
    end
  end
  merged = vim.tbl_deep_extend("force", DEFAULTS, asked)
  for _, list in ipairs({ "cmd", "root_markers" }) do
    merged[list] = asked[list] or DEFAULTS[list]
  end
  return merged
end

---@return pillion.Config
function M.get()
  return merged or M.set()
end

return M
