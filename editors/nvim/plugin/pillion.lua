-- Nothing is loaded here but names: the rest comes with the first file, key or command.
if vim.g.loaded_pillion then
  return
end
vim.g.loaded_pillion = true

if vim.fn.has("nvim-0.10") == 0 then
  vim.notify("pillion needs Neovim 0.10 or newer", vim.log.levels.WARN)
  return
end

vim.api.nvim_create_user_command("Pillion", function(call)
  require("pillion.command").run(call)
end, {
  nargs = "*",
  range = true,
  complete = function(...)
    return require("pillion.command").complete(...)
  end,
  desc = "Pillion: status, toggle, edit, refactor and more",
})

for name, action in pairs({
  accept = "accept",
  ["accept-line"] = "accept_line",
  ["accept-word"] = "accept_word",
  next = "next",
  prev = "prev",
  dismiss = "dismiss",
  trigger = "trigger",
}) do
  vim.keymap.set("i", "<Plug>(pillion-" .. name .. ")", function()
    return require("pillion.keys").press(action)
  end, { expr = true, replace_keycodes = true, desc = "Pillion: " .. name })
end

---@param buffer integer
local function attach(buffer)
  vim.schedule(function()
    if vim.api.nvim_buf_is_loaded(buffer) then
      require("pillion").attach(buffer)
    end
  end)
end

local early = {} ---@type integer[]
vim.api.nvim_create_autocmd({ "FileType", "BufFilePost" }, {
  group = vim.api.nvim_create_augroup("pillion.load", {}),
  callback = function(event)
    if vim.v.vim_did_enter == 1 then
      attach(event.buf)
    else
      table.insert(early, event.buf)
    end
  end,
})

-- Files on the command line do not wait for us, nor the start for them.
vim.api.nvim_create_autocmd("UIEnter", {
  group = "pillion.load",
  once = true,
  callback = function()
    vim.defer_fn(function()
      vim.iter(early):each(attach)
    end, 20)
  end,
})

-- A plugin manager may come behind the files.
if vim.v.vim_did_enter == 1 then
  vim.iter(vim.api.nvim_list_bufs()):each(attach)
end
