# Jobs that wait for their turn: `chain.add Permits` in `config.server_middleware`. A job class may have
# `self.permit_keys(*args)`.
require_relative "permit"

class Permits
  def call(worker, job, _queue)
    keys = worker.class.respond_to?(:permit_keys) ? worker.class.permit_keys(*job["args"]) : {}
    turn = Permit.ask(keys: keys)
    # Without a turn the same job comes back. No retry is counted.
    return Sidekiq::Client.push(job.merge("at" => Time.now.to_f + turn[:seconds])) unless turn[:end]
    begin
      yield
    ensure
      turn[:end].call
    end
  end
end
