# A permit of sluiced, with the standard library.
require "json"
require "net/http"
require "socket"

module Permit
  # The sockets of this machine's replicas: where one is gone, the next one is asked.
  SOCKETS = ENV.fetch("SLUICED_SOCKETS", "/run/sluiced/callers.sock").split(":")
  GONE = [SystemCallError, IOError, Timeout::Error, Net::ProtocolError, JSON::ParserError].freeze

  module_function

  # Waits for a turn: `:end` ends the permit, `:seconds` says when to ask again.
  def ask(wanted)
    seconds = 1
    (SOCKETS * 3).each do |path|
      socket = nil
      socket = Net::BufferedIO.new(UNIXSocket.new(path), read_timeout: 40) # longer than max_wait
      asked = now
      status, again, said = request(socket, Net::HTTP::Post.new("/v1/permits"), wanted)
      if status == 200
        age = 1000 * (now - asked) - said["waited_ms"]
        # Otherwise the call may come too late. A quarter of the time is for its way.
        return { end: -> { finish(socket, said["id"]) } } if age <= 0.75 * said["use_within_ms"]
        finish(socket, said["id"], "?unused=true")
        next
      end
      socket.close
      return { seconds: again } if status == 429
      raise said["error"] if status != 503
      seconds = again
    rescue *GONE
      socket&.close # so that a request is over that still waits there
      next # this replica is gone, or stops
    end
    { seconds: seconds }
  end

  def finish(socket, id, how = "")
    request(socket, Net::HTTP::Delete.new("/v1/permits/#{id}#{how}"))
  rescue *GONE
    nil # it ends by itself
  ensure
    socket.close
  end

  def request(socket, request, body = nil)
    request["Host"] = "sluiced"
    request.content_type = "application/json"
    request.body = JSON.generate(body) if body
    request.exec(socket, "1.1", request.path)
    answer = Net::HTTPResponse.read_new(socket)
    answer.reading_body(socket, true) { answer.body }
    [answer.code.to_i, (answer["Retry-After"] || 1).to_i, JSON.parse(answer.body)]
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
